//! How many programs are compiled, and how often they run.

use super::{clients, list, numbers, on, one_program_for_all, programs_of};
use oxbridge::nn::Linear;
use oxbridge::ops::precision::{Precision, matmul_precision, with_matmul_precision};
use oxbridge::optim::{AdamW, AdamWOptions, Sgd, SgdOptions};
use oxbridge::prelude::*;

/// Also 0 and ±1, which are no special numbers here.
const RATES: &[f64] = &[0.1, 0.2, 1.0, 0.0, -1.0, 1e-8, 0.1];

#[test]
fn a_sweep_of_the_learning_rate_is_one_program() {
    one_program_for_all(1, RATES, |client, lr| {
        let w = numbers(client, 4);
        let sgd = Sgd::new(&w, SgdOptions { lr, ..SgdOptions::default() })?;
        let (new, _) = sgd.update(&w, &w)?;
        assert_eq!(new.to_vec::<f32>()?[3], 4.0 - (lr as f32) * 4.0);
        Ok(())
    });
    for client in clients() {
        let step = jit(|(w, opt): (Tensor, AdamW<Tensor>)| {
            let slopes = grad(|w: &Tensor| w.mul(w)?.sum())(&w)?;
            opt.update(&w, &slopes)
        });
        let w = numbers(&client, 4);
        let mut state = (w.clone(), AdamW::new(&w, AdamWOptions::default()).unwrap());
        for lr in RATES {
            state.1 = state.1.with_lr(*lr);
            state = step.call(state).unwrap();
        }
        // Not one more either for the first steps, in which others make the optimiser's state.
        assert_eq!(step.compiled(), 1, "on {client:?}");
        assert_eq!(state.1.step.item::<i64>().unwrap(), RATES.len() as i64);
    }
}

#[test]
fn a_rate_equal_to_another_number_is_no_new_program() {
    // The state's zeros, and the update.
    one_program_for_all(2, &[1e-3, 1e-8, 0.9], |client, lr| {
        let w = numbers(client, 4);
        // Equal to eps, then to the first beta.
        let options = AdamWOptions { lr, eps: 1e-8, betas: (0.9, 0.99), ..Default::default() };
        AdamW::new(&w, options)?.update(&w, &w)?;
        Ok(())
    });
    one_program_for_all(1, &[(2.0, 3.0), (2.0, 2.0), (1.0, 0.0)], |client, (low, high)| {
        let x = numbers(client, 4);
        assert!(list(&x.clamp(low, high)?).iter().all(|v| *v <= high));
        Ok(())
    });
}

#[test]
fn a_sweep_of_offsets_is_one_program() {
    let offsets = [0i64, 1, 2, 3, 5];
    one_program_for_all(1, &offsets, |client, start| {
        let part = numbers(client, 8).narrow(0, start, 2)?;
        assert_eq!(part.to_vec::<f32>()?[0], start as f32 + 1.0);
        Ok(())
    });
    one_program_for_all(1, &offsets, |client, index| {
        assert_eq!(numbers(client, 8).select(0, index)?.item::<f32>()?, index as f32 + 1.0);
        Ok(())
    });
    one_program_for_all(1, &offsets, |client, shift| {
        let rolled = numbers(client, 8).roll(shift, 0)?.to_vec::<f32>()?;
        assert_eq!(rolled[shift as usize], 1.0);
        Ok(())
    });
}

#[test]
fn writing_at_another_place_is_no_new_program() {
    for client in clients() {
        let x = numbers(&client, 8);
        let write = |i: i64| {
            x.select(0, i)?.fill_(0.0)?;
            x.narrow(0, i + 1, 2)?.add_(10.0)?;
            x.value().map(drop)
        };
        let first = programs_of(&client, || write(0));
        assert!(first > 0);
        assert_eq!(programs_of(&client, || (1..5).try_for_each(write)), 0, "on {client:?}");
        assert_eq!(list(&x), [0.0, 0.0, 0.0, 0.0, 0.0, 26.0, 17.0, 8.0]);
    }
}

#[test]
fn exponents_and_other_numbers_are_operands() {
    one_program_for_all(1, &[2.0, 3.0, 0.5, 1.0], |client, exponent| {
        numbers(client, 4).pow(exponent).map(drop)
    });
    one_program_for_all(1, &[0.0, 1.0, 7.5], |client, value| {
        let filled = numbers(client, 4).fill_(value)?;
        assert_eq!(list(&filled), [value; 4]);
        filled.add(&numbers(client, 4)).map(drop)
    });
}

#[test]
fn a_mask_is_data() {
    one_program_for_all(1, &[0u8, 1, 7, 15], |client, bits| {
        let mask: Vec<bool> = (0..4).map(|i| bits >> i & 1 == 1).collect();
        let filled = numbers(client, 4).masked_fill(&on(client, &mask, [4]), -1.0)?;
        assert_eq!(list(&filled).iter().filter(|v| **v == -1.0).count() as u32, bits.count_ones());
        Ok(())
    });
}

/// Their graph grows until it is synchronised, and each length is compiled.
#[test]
fn a_loop_of_random_numbers_compiles_in_its_first_round_only() {
    let key = |client: &Client| on(client, &[0u32, 3], [2]);
    let draw = |key: &Tensor| {
        let keys = oxbridge::tensor::random::Key::from_data(key).split(2)?;
        let mut keys = keys.into_iter();
        let (next, now) = (keys.next().unwrap(), keys.next().unwrap());
        let x = now.normal([4, 4], DType::F32)?;
        Ok((next.data().clone(), x.matmul(&x)?.sum()?))
    };
    for client in clients() {
        let mut key = key(&client);
        let mut round = || {
            let (next, value) = draw(&key)?;
            key = next;
            value.item::<f32>().map(drop)
        };
        let first = programs_of(&client, &mut round);
        let rest = programs_of(&client, || (0..5).try_for_each(|_| round()));
        assert!(first > 0);
        assert_eq!(rest, 0, "on {client:?}");
    }
    one_program_for_all(1, &[1], |client, _| {
        let step = jit(draw);
        let mut key = key(client);
        let mut values = Vec::new();
        for _ in 0..6 {
            let (next, value) = step.call(&key)?;
            key = next;
            values.push(value);
        }
        let values: Vec<f32> = values.iter().map(Tensor::item).collect::<Result<_>>()?;
        assert!(values.windows(2).all(|w| w[0] != w[1]), "{values:?}");
        Ok(())
    });
}

#[test]
fn order_and_lifetime_of_lines_do_not_matter() {
    one_program_for_all(3, &[0, 1, 2, 3], |client, variant| {
        let x = numbers(client, 4);
        let (a, b) = match variant {
            0 => (x.sin()?, x.cos()?),
            _ => {
                let b = x.cos()?;
                (x.sin()?, b)
            }
        };
        let sum = if variant == 2 { b.add(&a)? } else { a.add(&b)? };
        if variant == 3 {
            // Theirs compiles again if a temporary is dead before the read.
            drop((a, b));
        }
        sum.to_vec::<f32>().map(drop)
    });
}

/// Theirs has which buffers are the same in the key.
#[test]
fn a_tensor_passed_twice_is_no_new_program() {
    one_program_for_all(1, &[false, true], |client, twice| {
        let (a, b) = (on(client, &[1f32; 4], [2, 2]), on(client, &[2f32; 4], [2, 2]));
        let product = a.matmul(if twice { &a } else { &b })?;
        assert_eq!(list(&product), if twice { [2.0; 4] } else { [4.0; 4] });
        Ok(())
    });
    for client in clients() {
        let product = jit(|(a, b): (Tensor, Tensor)| a.mul(&b));
        let (a, b) = (numbers(&client, 3), numbers(&client, 3));
        product.call((&a, &b)).unwrap();
        assert_eq!(list(&product.call((&a, &a)).unwrap()), [1.0, 4.0, 9.0]);
        assert_eq!(product.compiled(), 1);
    }
}

#[test]
fn reading_a_scalar_again_runs_nothing() {
    for client in clients() {
        let x = numbers(&client, 100);
        let before = client.metrics();
        let loss = x.sum().unwrap();
        for _ in 0..5 {
            assert_eq!(loss.item::<f32>().unwrap(), 5050.0);
        }
        let printed = loss.to_string();
        assert!(printed.contains("5050"), "{printed}");
        let done = client.metrics().since(&before);
        assert_eq!((done.programs, done.executions), (1, 1), "on {client:?}");
    }
}

#[test]
fn printing_compiles_and_runs_nothing() {
    for client in clients() {
        let x = numbers(&client, 6).view([2, 3]).unwrap();
        let before = client.metrics();
        for _ in 0..3 {
            assert!(x.to_string().contains('6'));
        }
        assert_eq!(client.metrics().since(&before).executions, 0, "on {client:?}");
    }
}

#[test]
fn the_last_batch_is_one_program_more_and_the_others_stay() {
    for client in clients() {
        let layer = Linear::new(3, 2, &mut Init::seed(0)).unwrap();
        let device = client.device(0).unwrap();
        let layer = oxbridge::transforms::tree::tree_map(&layer, |t| t.to_device(&device)).unwrap();
        let step = jit(|(layer, x): (Linear, Tensor)| layer.forward(&x)?.relu()?.mean());
        let batch = |n: usize| on(&client, &vec![1f32; n * 3], [n, 3]);
        for n in [8, 8, 5, 8, 5, 8] {
            step.call((&layer, &batch(n))).unwrap();
        }
        assert_eq!(step.compiled(), 2);
        let again = programs_of(&client, || step.call((&layer, &batch(5))).map(drop));
        assert_eq!(again, 0, "on {client:?}");
    }
}

#[test]
fn the_number_of_rounds_can_be_data() {
    for client in clients() {
        let power = jit(|(x, n): (Tensor, Tensor)| {
            fori_loop(0, &n, |_: &Tensor, y: &Tensor| y.mul(&x), &x.ones_like()?)
        });
        for n in [3i64, 0, 7] {
            let x = on(&client, &[2f32], [1]);
            let y = power.call((&x, &on(&client, &[n], []))).unwrap();
            assert_eq!(list(&y), [2f64.powi(n as i32)]);
        }
        assert_eq!(power.compiled(), 1, "on {client:?}");
    }
}

/// What the compiler chooses for a result is another type than the argument's; a step that says what
/// its results are like is compiled once.
#[test]
fn results_sharded_as_arguments_are_one_program() {
    let mesh = Mesh::new(&Client::cpu(2).unwrap().devices(), [("data", 2)]).unwrap();
    let x = numbers(&Client::host(1), 4);
    let x = Tensor::from_slice(&x.to_vec::<f32>().unwrap(), [4]).unwrap();
    let mut w = x.shard(&mesh, spec!["data"]).unwrap();
    let step = jit(|w: &Tensor| w.mul(w)?.sub(w)).out_like([Some(0)]);
    let aval = w.aval();
    for _ in 0..3 {
        w = step.call(&w).unwrap();
        assert_eq!(w.aval(), aval);
    }
    assert_eq!(step.compiled(), 1);
}

/// A program stands in memory for all threads, and a second function object of the same operations
/// runs eagerly on the same programs.
#[test]
fn threads_share_programs() {
    for client in clients() {
        let work = || numbers(&client, 5).sin()?.mul(2.0)?.to_vec::<f32>();
        let here = work().unwrap();
        let before = client.metrics();
        let there = std::thread::scope(|s| s.spawn(|| work().unwrap()).join().unwrap());
        assert_eq!(here, there);
        assert_eq!(client.metrics().since(&before).programs, 0, "on {client:?}");
    }
}

/// Everything that changes a result is in the key.
#[test]
fn static_fields_and_dtypes_are_in_the_key() {
    #[derive(Clone, Debug, Tree)]
    struct Scaled {
        x: Tensor,
        #[tree(static)]
        power: u32,
    }
    for client in clients() {
        let f = jit(|s: &Scaled| s.x.pow(f64::from(s.power)));
        let scaled = |power| Scaled { x: on(&client, &[3f32], [1]), power };
        assert_eq!(list(&f.call(scaled(2)).unwrap()), [9.0]);
        assert_eq!(list(&f.call(scaled(3)).unwrap()), [27.0]);
        assert_eq!(list(&f.call(scaled(2)).unwrap()), [9.0]);
        let wide = Scaled { x: on(&client, &[3f64], [1]), power: 2 };
        assert_eq!(f.call(wide).unwrap().dtype(), DType::F64);
        assert_eq!(f.compiled(), 3);
    }
}

/// Theirs runs the program of the precision before.
#[test]
fn another_precision_of_products_is_another_program() {
    use Precision::{Default, Highest};
    for client in clients() {
        let x = on(&client, &[1f32, 2.0, 3.0, 4.0], [2, 2]);
        let square = jit(|x: &Tensor| x.matmul(x));
        let call = || square.call(&x).map(drop);
        let eager = || x.matmul(&x).map(drop);
        assert_eq!(matmul_precision(), Default);
        assert_eq!(programs_of(&client, || call().and_then(|()| eager())), 2);
        let highest = || with_matmul_precision(Highest, || call().and_then(|()| eager()));
        assert_eq!(programs_of(&client, highest), 2, "on {client:?}");
        // Both are kept.
        let again = || highest().and_then(|()| call()).and_then(|()| eager());
        assert_eq!(programs_of(&client, again), 0, "on {client:?}");
        assert_eq!(square.compiled(), 2);
        // Each has the setting in its text, also for a product that another function contains.
        let outer = jit(|x: &Tensor| square.call(x)?.sin());
        let text = |p| with_matmul_precision(p, || outer.lower(&x).unwrap().stablehlo());
        assert!(!text(Default).contains("HIGHEST") && text(Highest).contains("HIGHEST"));
    }
}
