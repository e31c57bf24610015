//! The derives: order, names, static parts, generics, what `jit` and `grad` make of them.

use oxbridge::nn::Buffer;
use oxbridge::prelude::*;
use oxbridge::transforms::tree::{leaves, paths, structure, tree_map};

fn t(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len()]).unwrap()
}

#[derive(Clone, Debug, Tree)]
struct Named<T> {
    first: Tensor,
    #[tree(static)]
    rate: f64,
    rest: Vec<T>,
    r#type: Option<Tensor>,
}

#[derive(Clone, Debug, Tree)]
struct Pair(Tensor, #[tree(static)] &'static str, Tensor);

#[derive(Clone, Debug, Tree)]
struct Unit;

#[derive(Clone, Debug, Tree)]
enum Choice<A, const N: usize> {
    Nothing,
    Many([A; N]),
    Both { left: Tensor, right: Box<Tensor> },
}

#[derive(Clone, Debug, Tree)]
struct Marked<S> {
    x: Tensor,
    #[tree(static)]
    mark: S,
}

fn named() -> Named<Pair> {
    let pair = Pair(t(&[2.0]), "two", t(&[3.0]));
    Named { first: t(&[1.0]), rate: 0.5, rest: vec![pair], r#type: Some(t(&[4.0])) }
}

#[test]
fn trees_have_order_paths_and_structure() {
    let tree = named();
    assert_eq!(paths(&tree), ["first", "rest[0][0]", "rest[0][2]", "type"]);
    let doubled = tree_map(&tree, |x| x.mul(&t(&[2.0]))).unwrap();
    let values: Vec<f32> = leaves(&doubled).iter().map(|x| x.item::<f32>().unwrap()).collect();
    assert_eq!(values, [2.0, 4.0, 6.0, 8.0]);
    assert_eq!((doubled.rate, doubled.rest[0].1), (0.5, "two"));
    assert_eq!(structure(&tree), structure(&doubled));
    let mut other = named();
    other.rate = 0.25;
    assert_ne!(structure(&tree), structure(&other));
    other = named();
    other.rest[0].1 = "three";
    assert_ne!(structure(&tree), structure(&other));
    assert!(leaves(&Unit).is_empty() && tree_map(&Unit, |x| Ok(x.clone())).is_ok());
}

#[test]
fn variants_are_static() {
    let choices: [Choice<Tensor, 2>; 3] = [
        Choice::Nothing,
        Choice::Many([t(&[1.0]), t(&[2.0])]),
        Choice::Both { left: t(&[1.0]), right: Box::new(t(&[2.0])) },
    ];
    assert_eq!(paths(&choices[1]), ["[0][0]", "[0][1]"]);
    assert_eq!(paths(&choices[2]), ["left", "right"]);
    let structures = choices.each_ref().map(structure);
    assert!(structures[0] != structures[1] && structures[1] != structures[2]);
    let f = jit(|c: &Choice<Tensor, 2>| match c {
        Choice::Nothing => Ok(t(&[0.0])),
        Choice::Many([a, b]) => a.mul(b),
        Choice::Both { left, .. } => Ok(left.clone()),
    });
    let results = choices.each_ref().map(|c| f.call(c).unwrap().item::<f32>().unwrap());
    assert_eq!((results, f.compiled()), ([0.0, 2.0, 1.0], 3));
}

#[test]
fn static_fields_are_in_the_key() {
    let f = jit(|m: &Marked<usize>| m.x.mul(&t(&[m.mark as f32])));
    let call = |mark| f.call(Marked { x: t(&[2.0]), mark }).unwrap().item::<f32>().unwrap();
    assert_eq!([call(1), call(3), call(1)], [2.0, 6.0, 2.0]);
    assert_eq!(f.compiled(), 2);
    let gradient = grad(|m: &Marked<usize>| m.x.mul(&m.x)?.sum());
    let gradient = gradient(&Marked { x: t(&[3.0]), mark: 7 }).unwrap();
    assert_eq!((gradient.x.item::<f32>().unwrap(), gradient.mark), (6.0, 7));
}

#[derive(Clone, Debug, Module)]
struct Counter {
    weight: Tensor,
    count: Buffer,
    #[module(training)]
    training: Guarded<bool>,
}

#[derive(Clone, Debug, Module)]
struct Model<L> {
    layers: Vec<L>,
    head: Option<Tensor>,
}

impl Layer for Counter {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if self.training.get() {
            let count = self.count.tensor();
            count.set_value(count.mul(&t(&[2.0]))?.value()?)?;
        }
        x.mul(&self.weight)
    }
}

fn model() -> Model<Counter> {
    let layer = |w| Counter {
        weight: t(&[w]),
        count: Buffer::new(&t(&[1.0])).unwrap(),
        training: Guarded::new(true),
    };
    Model { layers: vec![layer(2.0), layer(3.0)], head: Some(t(&[5.0])) }
}

#[test]
fn modules_have_torchs_names() {
    let model = model();
    let names: Vec<String> = model.state_dict().into_keys().collect();
    let expected =
        ["layers.0.weight", "layers.0.count", "layers.1.weight", "layers.1.count", "head"];
    assert_eq!(names, expected);
    let parameters: Vec<String> = model.named_parameters().into_iter().map(|n| n.0).collect();
    assert_eq!(parameters, ["layers.0.weight", "layers.1.weight", "head"]);
    assert_eq!((model.parameters().len(), model.buffers().len()), (3, 2));
    assert_eq!(model.named_buffers()[1].0, "layers.1.count");
}

#[test]
fn state_dicts_load_or_say_all_that_does_not_fit() {
    let (from, to) = (model(), model());
    from.layers[0].weight.set_value(t(&[9.0]).value().unwrap()).unwrap();
    let clone = to.clone();
    to.load_state_dict(&from.state_dict()).unwrap();
    assert_eq!(clone.layers[0].weight.item::<f32>().unwrap(), 9.0);
    let mut state = from.state_dict();
    state.shift_remove("head");
    state.insert("tail".into(), t(&[1.0]));
    state.insert("layers.0.weight".into(), t(&[1.0, 2.0]));
    let error = to.load_state_dict(&state).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Tree);
    assert_eq!(
        error.text(),
        "the state dict does not fit the module: missing keys: `head`; unexpected keys: `tail`; \
         `layers.0.weight` is f32[1] in the module and f32[2] in the state dict"
    );
    assert_eq!(to.layers[0].weight.item::<f32>().unwrap(), 9.0);
}

#[test]
fn buffers_are_written_in_place_under_every_transform() {
    let model = model();
    let x = t(&[1.0]);
    let run = |m: &Model<Counter>| m.layers[1].forward(&m.layers[0].forward(&x)?)?.sum();
    let counts = |m: &Model<Counter>| {
        m.buffers().iter().map(|b| b.item::<f32>().unwrap()).collect::<Vec<_>>()
    };
    run(&model).unwrap();
    assert_eq!(counts(&model), [2.0, 2.0]);
    let (value, gradient) = value_and_grad(run)(&model).unwrap();
    assert_eq!((value.item::<f32>().unwrap(), counts(&model)), (6.0, vec![4.0, 4.0]));
    let gradients: Vec<f32> =
        gradient.parameters().iter().map(|g| g.item::<f32>().unwrap()).collect();
    assert_eq!(gradients, [3.0, 2.0, 0.0]);
    let step = jit(value_and_grad(run));
    step.call(&model).unwrap();
    step.call(&model).unwrap();
    assert_eq!((counts(&model), step.compiled()), (vec![16.0, 16.0], 1));
    // Another model has other buffers: another program.
    let other = self::model();
    step.call(&other).unwrap();
    assert_eq!((counts(&other), counts(&model)), (vec![2.0, 2.0], vec![16.0, 16.0]));
    model.eval();
    step.call(&model).unwrap();
    assert_eq!((counts(&model), step.compiled()), (vec![16.0, 16.0], 3));
}
