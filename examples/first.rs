//! The first program: the same code eager, differentiated, compiled, and as StableHLO.
//!
//! Runs on the host backend with nothing installed, and on a plugin's device if there is one.

#![expect(clippy::print_stdout, reason = "an example prints")]

use oxbridge::prelude::*;

fn main() -> anyhow::Result<()> {
    // Eager: each line runs on the device at once.
    let x = Tensor::randn([32, 64])?;
    let w = Tensor::randn([64, 10])? * 0.1;
    println!("{}", x.matmul(&w)?.softmax(-1)?);

    // The same code, retraced: differentiate it, compile it, look at it.
    let loss = |w: &Tensor| x.matmul(w)?.tanh()?.square()?.mean();
    let (value, gradient) = value_and_grad(loss)(&w)?;
    let step = jit(|(w, g): (Tensor, Tensor)| Ok(&w - &g * 0.1)).named("step");
    let better = step.call((&w, &gradient))?;
    println!("loss {value}, after one step {}\n", loss(&better)?);
    println!("{}", step.lower((&w, &gradient))?.stablehlo());
    Ok(())
}
