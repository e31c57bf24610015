//! The Threefry-2x32 block function: 20 rounds, the random bits under every `Key`.

use super::HostArray;
use crate::dtype::DType;
use rayon::prelude::*;

/// Elements from which the work is split over the cores.
const PARALLEL: usize = 1 << 12;
/// Elements that one task works on.
const CHUNK: usize = 1 << 11;

/// Rotations of the rounds: odd groups of four use the first row, even groups the second.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// The Threefry-2x32 block cipher with 20 rounds, element by element: key `(k0, k1)`, counter
/// `(x0, x1)`, all `u32` of one shape.
pub fn threefry2x32(
    k0: &HostArray,
    k1: &HostArray,
    x0: &HostArray,
    x1: &HostArray,
) -> (HostArray, HostArray) {
    debug_assert!(
        [k0, k1, x0, x1].iter().all(|a| a.dtype() == DType::U32 && a.shape() == x0.shape()),
        "threefry2x32 takes u32 arrays of one shape"
    );
    let (whole0, whole1) = (whole(k0), whole(k1));
    let (keys0, keys1) = (Words::of(k0, whole0.as_ref()), Words::of(k1, whole1.as_ref()));
    let (counts0, counts1) = (x0.contiguous(), x1.contiguous());
    let counts0 = counts0.as_contiguous::<u32>().unwrap_or_default();
    let counts1 = counts1.as_contiguous::<u32>().unwrap_or_default();
    let mut second = vec![0u32; counts1.len()];
    let first = HostArray::build_as::<u32>(DType::U32, x0.shape(), |first| {
        let task = |(i, (a, b)): (usize, (&mut [u32], &mut [u32]))| {
            let start = i * CHUNK;
            for j in 0..a.len() {
                let key = [keys0.at(start + j), keys1.at(start + j)];
                [a[j], b[j]] = block(key, [counts0[start + j], counts1[start + j]]);
            }
        };
        if first.len() < PARALLEL {
            first.chunks_mut(CHUNK).zip(second.chunks_mut(CHUNK)).enumerate().for_each(task);
        } else {
            let chunks = first.par_chunks_mut(CHUNK).zip(second.par_chunks_mut(CHUNK));
            chunks.enumerate().for_each(task);
        }
    });
    let second = HostArray::build_as(DType::U32, x0.shape(), |out| out.copy_from_slice(&second));
    (first, second)
}

/// One word of the key for each element; a broadcast key is stored once.
enum Words<'a> {
    Same(u32),
    Each(&'a [u32]),
}

impl Words<'_> {
    /// The words of `key`, of which `whole` is the contiguous copy if it is no broadcast scalar.
    fn of<'a>(key: &HostArray, whole: Option<&'a HostArray>) -> Words<'a> {
        match whole {
            Some(whole) => Words::Each(whole.as_contiguous().unwrap_or_default()),
            None => Words::Same(key.storage::<u32>()[key.offset()]),
        }
    }

    #[inline]
    fn at(&self, i: usize) -> u32 {
        match self {
            Words::Same(word) => *word,
            Words::Each(words) => words[i],
        }
    }
}

/// The contiguous key, unless it repeats one word.
fn whole(key: &HostArray) -> Option<HostArray> {
    let repeats = key.shape().size() > 0 && key.strides().iter().all(|&s| s == 0);
    (!repeats).then(|| key.contiguous())
}

#[inline]
fn block(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    // The third key word is the parity of the other two, with the constant of the Skein cipher.
    let schedule = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD1_1BDA];
    let mut x = [counter[0].wrapping_add(schedule[0]), counter[1].wrapping_add(schedule[1])];
    for group in 0..5u32 {
        for rotation in ROTATIONS[group as usize % 2] {
            x[0] = x[0].wrapping_add(x[1]);
            x[1] = x[1].rotate_left(rotation) ^ x[0];
        }
        let next = group as usize + 1;
        x[0] = x[0].wrapping_add(schedule[next % 3]);
        x[1] = x[1].wrapping_add(schedule[(next + 1) % 3]).wrapping_add(group + 1);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Scalar;

    fn words(data: &[u32]) -> HostArray {
        HostArray::from_slice(data, &[data.len()].into()).unwrap()
    }

    fn run(key: [u32; 2], x0: &[u32], x1: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let shape = [x0.len()].into();
        let k0 = HostArray::full(Scalar::new(key[0]), &shape);
        let k1 = words(&vec![key[1]; x0.len()]);
        let (a, b) = threefry2x32(&k0, &k1, &words(x0), &words(x1));
        (a.to_vec().unwrap(), b.to_vec().unwrap())
    }

    /// The first three are the known answers published with the cipher; all four were recorded
    /// from `jax.extend.random.threefry_2x32` of jax 0.10.2 (the random golden data,
    /// cases `rng/threefry_2x32/*`).
    #[test]
    fn known_answers() {
        let max = u32::MAX;
        assert_eq!(run([0, 0], &[0], &[0]), (vec![0x6b20_0159], vec![0x99ba_4efe]));
        assert_eq!(run([max, max], &[max], &[max]), (vec![0x1cb9_96fc], vec![0xbb00_2be7]));
        let pi = run([0x1319_8a2e, 0x0370_7344], &[0x243f_6a88], &[0x85a3_08d3]);
        assert_eq!(pi, (vec![0xc492_3a9c], vec![0x483d_f7a0]));
        let (a, b) = run([0, 42], &[0, 1, 2, 3, 4], &[5, 6, 7, 8, 9]);
        assert_eq!(a, [0xa4d9_1a96, 0x5290_657f, 0x3188_ce22, 0xe2f1_3aff, 0xd792_e765]);
        assert_eq!(b, [0x3122_544e, 0x585a_803a, 0x409c_2e81, 0xa1c4_4acd, 0xa79e_dc49]);
    }

    #[test]
    fn large_strided_and_empty_agree_with_the_block() {
        let n = PARALLEL + 17;
        let up: Vec<u32> = (0..n as u32).collect();
        let key: Vec<u32> = up.iter().map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
        let down = words(&up).reverse(&[0]);
        let (a, b) = threefry2x32(&words(&key), &down, &words(&up), &down);
        let (a, b) = (a.to_vec::<u32>().unwrap(), b.to_vec::<u32>().unwrap());
        for i in [0, 1, CHUNK - 1, CHUNK, n - 1] {
            let d = up[n - 1 - i];
            assert_eq!([a[i], b[i]], block([key[i], d], [up[i], d]), "element {i}");
        }
        assert_eq!(run([1, 2], &[], &[]), (vec![], vec![]));
    }
}
