//! The numbers that NumPy draws after `numpy.random.default_rng(0)`, so that losses can be compared
//! with those of other systems.
//!
//! PCG64 (a 128-bit linear congruential generator, the halves of whose state are xored and rotated),
//! and on it Marsaglia and Tsang's ziggurat of 256 layers for normal numbers.

/// The generator's multiplier.
const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;
/// State and increment that `default_rng(0)` begins with.
const STATE: u128 = 35_399_562_948_360_463_058_890_781_895_381_311_971;
const INCREMENT: u128 = 87_136_372_517_582_989_555_478_159_403_783_844_777;

/// Layers of the ziggurat, where its tail begins, and the area of each layer.
const LAYERS: usize = 256;
const TAIL: f64 = 3.654_152_885_361_009;
const AREA: f64 = 0.004_928_673_233_99;

/// `default_rng(0)`.
#[derive(Debug)]
pub(crate) struct Generator {
    state: u128,
    /// The upper half of a word whose lower half was used.
    half: Option<u32>,
    /// The right edge of each layer; of the lowest one that of a rectangle of its area.
    edges: [f64; LAYERS],
}

fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp()
}

impl Generator {
    pub(crate) fn new() -> Generator {
        let mut edges = [0.0; LAYERS];
        edges[LAYERS - 1] = TAIL;
        for i in (1..LAYERS - 1).rev() {
            let above = edges[i + 1];
            edges[i] = (-2.0 * (AREA / above + density(above)).ln()).sqrt();
        }
        edges[0] = AREA / density(TAIL);
        Generator { state: STATE, half: None, edges }
    }

    fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `integers(0, 2**bits)`.
    pub(crate) fn below_power(&mut self, bits: u32) -> i64 {
        let word = match self.half.take() {
            Some(half) => half,
            None => {
                let word = self.word();
                self.half = Some((word >> 32) as u32);
                word as u32
            }
        };
        i64::from(word >> (32 - bits))
    }

    /// `standard_normal()`.
    pub(crate) fn normal(&mut self) -> f64 {
        loop {
            let word = self.word();
            let layer = (word & 0xFF) as usize;
            let sign = if (word >> 8) & 1 == 1 { -1.0 } else { 1.0 };
            let bits = (word >> 9) & 0x000F_FFFF_FFFF_FFFF;
            let x = bits as f64 / (1u64 << 52) as f64 * self.edges[layer];
            let inner = match layer {
                0 => TAIL,
                1 => 0.0,
                _ => self.edges[layer - 1],
            };
            if x < inner {
                return sign * x;
            }
            if layer == 0 {
                let sign = if (bits >> 8) & 1 == 1 { -1.0 } else { 1.0 };
                return sign * self.tail();
            }
            let above = if layer == 1 { 1.0 } else { density(self.edges[layer - 1]) };
            let below = density(self.edges[layer]);
            if (above - below) * self.unit() + below < density(x) {
                return sign * x;
            }
        }
    }

    /// A number past the last edge.
    fn tail(&mut self) -> f64 {
        loop {
            let x = -(-self.unit()).ln_1p() / TAIL;
            let y = -(-self.unit()).ln_1p();
            if y + y > x * x {
                return TAIL + x;
            }
        }
    }
}
