//! The loss curve as a PNG.

use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::Path;

/// The losses of training and validation, by step.
#[derive(Default)]
pub(crate) struct Curves {
    pub(crate) train: Vec<(f64, f64)>,
    pub(crate) validation: Vec<(f64, f64)>,
}

pub(crate) fn write(path: &Path, curves: &Curves) -> anyhow::Result<()> {
    let font = epaint_default_fonts::HACK_REGULAR;
    register_font("sans-serif", FontStyle::Normal, font)
        .map_err(|_| anyhow::anyhow!("the chart's font cannot be read"))?;
    let all = || curves.train.iter().chain(&curves.validation);
    let last = all().map(|p| p.0).fold(1.0, f64::max);
    let low = all().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let high = all().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
    anyhow::ensure!(low.is_finite() && high.is_finite(), "there is no loss to draw");
    let root = BitMapBackend::new(path, (900, 540)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("loss", ("sans-serif", 22))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..last, low - 0.05..high + 0.05)?;
    chart.configure_mesh().x_desc("step").y_desc("nats per character").draw()?;
    chart
        .draw_series(LineSeries::new(curves.train.iter().copied(), &BLUE))?
        .label("train")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLUE));
    chart
        .draw_series(LineSeries::new(curves.validation.iter().copied(), &RED))?
        .label("validation")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], RED));
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    root.present()?;
    Ok(())
}
