//! Learning rates over the steps of a run.

/// A learning rate for each step: give [`Schedule::at`] to an optimiser's `with_lr`.
///
/// # Example
/// ```
/// use oxbridge::optim::Schedule;
/// let schedule = Schedule::cosine(1.0, 0.1, 10, 110);
/// assert_eq!(schedule.at(0), 0.1);
/// assert_eq!(schedule.at(9), 1.0);
/// assert!((schedule.at(60) - 0.55).abs() < 1e-12);
/// assert_eq!(schedule.at(1000), 0.1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// The same rate in each step.
    Constant {
        /// The rate.
        lr: f64,
    },
    /// The rate times `gamma` after each `every` steps.
    Step {
        /// The rate at first.
        lr: f64,
        /// The factor.
        gamma: f64,
        /// Steps with one rate.
        every: usize,
    },
    /// A line up to the rate, then half a cosine down.
    Cosine {
        /// The highest rate.
        lr: f64,
        /// The rate at the end and after it.
        min_lr: f64,
        /// Steps on the way up.
        warmup: usize,
        /// All steps, warm-up too.
        steps: usize,
    },
    /// A line up to the rate, then a line down to nothing.
    Linear {
        /// The highest rate.
        lr: f64,
        /// Steps on the way up.
        warmup: usize,
        /// All steps, warm-up too.
        steps: usize,
    },
}

impl Schedule {
    /// The same rate in each step.
    pub fn constant(lr: f64) -> Schedule {
        Schedule::Constant { lr }
    }

    /// Up to `lr` over `warmup` steps, then half a cosine down to `min_lr` at step `steps`.
    pub fn cosine(lr: f64, min_lr: f64, warmup: usize, steps: usize) -> Schedule {
        Schedule::Cosine { lr, min_lr, warmup, steps }
    }

    /// Up to `lr` over `warmup` steps, then straight down to 0 at step `steps`.
    pub fn linear(lr: f64, warmup: usize, steps: usize) -> Schedule {
        Schedule::Linear { lr, warmup, steps }
    }

    /// The rate of a step, counted from 0.
    pub fn at(&self, step: usize) -> f64 {
        match *self {
            Schedule::Constant { lr } => lr,
            Schedule::Step { lr, gamma, every } => {
                lr * gamma.powi(i32::try_from(step / every.max(1)).unwrap_or(i32::MAX))
            }
            Schedule::Cosine { lr, warmup, .. } | Schedule::Linear { lr, warmup, .. }
                if step < warmup =>
            {
                lr * (step + 1) as f64 / warmup as f64
            }
            Schedule::Cosine { lr, min_lr, warmup, steps } => {
                let angle = std::f64::consts::PI * progress(step, warmup, steps);
                min_lr + (lr - min_lr) * 0.5 * (1.0 + angle.cos())
            }
            Schedule::Linear { lr, warmup, steps } => lr * (1.0 - progress(step, warmup, steps)),
        }
    }
}

/// How far a step stands between the end of the warm-up (0) and the end (1).
fn progress(step: usize, warmup: usize, steps: usize) -> f64 {
    let whole = steps.saturating_sub(warmup).max(1);
    (step.saturating_sub(warmup) as f64 / whole as f64).min(1.0)
}
