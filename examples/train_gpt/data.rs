//! The text as numbers, and batches of it.

use anyhow::Context;
use oxbridge::prelude::*;
use oxbridge::tensor::random::Key;
use std::path::Path;

/// A text of one byte a character, split into a part to train on and a part to test on.
pub(crate) struct Text {
    pub(crate) characters: Vec<u8>,
    train: Vec<i64>,
    validation: Vec<i64>,
}

/// What one training step takes.
#[derive(Debug, Tree)]
pub(crate) struct Batch {
    /// `[batch, time]`.
    pub(crate) ids: Tensor,
    /// The characters after those.
    pub(crate) targets: Tensor,
    /// For dropout.
    pub(crate) key: Key,
}

/// Pseudo-random numbers of a seed and a step, so that a step's batch is the same after a resume.
struct Draws(u64);

impl Draws {
    fn next(&mut self, below: usize) -> usize {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below as u64) as usize
    }
}

impl Text {
    pub(crate) fn load(path: &Path, context: usize) -> anyhow::Result<Text> {
        let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let mut characters: Vec<u8> = bytes.clone();
        characters.sort_unstable();
        characters.dedup();
        let ids = bytes.iter().map(|b| characters.binary_search(b).unwrap_or(0) as i64);
        let mut train: Vec<i64> = ids.collect();
        let validation = train.split_off(train.len() * 9 / 10);
        anyhow::ensure!(
            validation.len() > context + 1,
            "{} has too few characters for a context of {context}",
            path.display()
        );
        Ok(Text { characters, train, validation })
    }

    pub(crate) fn encode(&self, text: &str) -> Vec<i64> {
        let known = text.bytes().filter_map(|b| self.characters.binary_search(&b).ok());
        known.map(|i| i as i64).collect()
    }

    pub(crate) fn decode(&self, ids: &[i64]) -> String {
        let known = ids.iter().filter_map(|&i| self.characters.get(i as usize));
        known.map(|&b| b as char).collect()
    }

    /// The batch of a training step.
    pub(crate) fn batch(
        &self,
        seed: u64,
        step: usize,
        size: usize,
        context: usize,
    ) -> Result<Batch> {
        let mut draws = Draws(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ (step as u64) << 20);
        let starts: Vec<usize> =
            (0..size).map(|_| draws.next(self.train.len() - context - 1)).collect();
        let (ids, targets) = windows(&self.train, &starts, context)?;
        Ok(Batch { ids, targets, key: Key::new(seed)?.fold_in(step as u32)? })
    }

    /// Batches that cover the test part evenly, always the same.
    pub(crate) fn validation(
        &self,
        count: usize,
        size: usize,
        context: usize,
    ) -> Result<Vec<(Tensor, Tensor)>> {
        let all = count * size;
        let room = self.validation.len() - context - 1;
        let starts: Vec<usize> = (0..all).map(|i| i * room / all).collect();
        starts.chunks(size).map(|starts| windows(&self.validation, starts, context)).collect()
    }
}

fn windows(text: &[i64], starts: &[usize], context: usize) -> Result<(Tensor, Tensor)> {
    let gather = |shift: usize| {
        let rows = starts.iter().flat_map(|&s| &text[s + shift..s + shift + context]);
        let rows: Vec<i64> = rows.copied().collect();
        Tensor::from_slice(&rows, [starts.len(), context])
    };
    Ok((gather(0)?, gather(1)?))
}
