use crate::launch::{Access, Launch, LaunchError, Slot};
use crate::params::Conv1DParams;
use crate::shader::Rungs;

use super::Storage;
use super::engine::{Kernel, flag, launch, slot};

/// The activation after a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConvActivation {
    /// Nothing.
    None,
    /// Exact GELU, by the error function, as in Whisper.
    Gelu,
    /// The tanh approximation of GELU.
    GeluTanh,
}

impl ConvActivation {
    fn name(self) -> &'static str {
        match self {
            ConvActivation::None => "none",
            ConvActivation::Gelu => "gelu",
            ConvActivation::GeluTanh => "gelu_tanh",
        }
    }
}

/// A one-dimensional convolution. Buffers: `x`, `weight`, `out` and, if there is one, `bias`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv1dCall {
    /// Channels read.
    pub in_channels: u32,
    /// Channels written.
    pub out_channels: u32,
    /// Taps, at most 16.
    pub taps: u32,
    /// Samples from one output to the next, at most 8.
    pub stride: u32,
    /// Zeros on either side, fewer than taps.
    pub padding: u32,
    /// Samples read.
    pub length: u32,
    /// Type of the weights: `f32` or `f16`.
    pub weight: Storage,
    /// Whether there is a bias.
    pub bias: bool,
    /// The activation.
    pub activation: ConvActivation,
    /// Whether the output is rows of channels rather than channels of samples.
    pub rows: bool,
    /// Channels and samples of an invocation, each 1, 2, 4 or 8. A tile is 16 times as large.
    pub part: [u32; 2],
}

/// Words of workgroup memory for the samples and weights of a step.
const MEMORY: u32 = 16 * 1024 / 4;

impl Conv1dCall {
    const NAME: &str = "conv1d";

    /// Whisper's convolution: three taps, padding 1, a bias, GELU.
    pub fn new(in_channels: u32, out_channels: u32, length: u32, stride: u32, weight: Storage) -> Conv1dCall {
        Conv1dCall {
            in_channels,
            out_channels,
            taps: 3,
            stride,
            padding: 1,
            length,
            weight,
            bias: true,
            activation: ConvActivation::Gelu,
            rows: false,
            part: [4, 4],
        }
    }

    /// Samples written: 0 if the padded input is shorter than the taps.
    pub fn out_length(&self) -> u64 {
        let padded = u64::from(self.length) + 2 * u64::from(self.padding);
        match padded.checked_sub(self.taps.into()) {
            Some(rest) => rest / u64::from(self.stride.max(1)) + 1,
            None => 0,
        }
    }

    /// Floating-point operations.
    pub fn operations(&self) -> u64 {
        2 * self.out_length()
            * u64::from(self.out_channels)
            * u64::from(self.in_channels)
            * u64::from(self.taps)
    }

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let Conv1dCall { in_channels, out_channels, taps, stride, padding, length, .. } = *self;
        let kernel = || Self::NAME.to_owned();
        if self.weight == Storage::Bf16 {
            return Err(LaunchError::Storage { kernel: kernel(), storage: self.weight.name() });
        }
        for (name, value) in [
            ("in_channels", in_channels),
            ("out_channels", out_channels),
            ("taps", taps),
            ("stride", stride),
            ("length", length),
        ] {
            if value == 0 {
                return Err(LaunchError::Zero { kernel: kernel(), name });
            }
        }
        for (what, value, most) in [
            ("taps", taps, 16),
            ("samples of a stride", stride, 8),
            // An output of padding alone is a mistake. Half of the index range is reserved for negative sample numbers.
            ("zeros beside a channel", padding, taps - 1),
            ("samples", length, i32::MAX as u32 / 4),
        ] {
            if value > most {
                return Err(LaunchError::Large { kernel: kernel(), what, count: value.into() });
            }
        }
        let out_length = self.out_length();
        if out_length == 0 {
            let (name, value) = ("length", length);
            let least = u64::from(taps) - 2 * u64::from(padding);
            return Err(LaunchError::TooLow { kernel: kernel(), name, value, least });
        }
        let [channels, times] = self.part;
        for (name, value) in [("channels of an invocation", channels), ("samples of an invocation", times)] {
            if ![1, 2, 4, 8].contains(&value) {
                let needed = "1, 2, 4 or 8";
                return Err(LaunchError::Tuning { kernel: kernel(), name, value, needed });
            }
        }
        let product = |a: u64, b: u32, what| {
            let count = a.saturating_mul(b.into());
            if count > u64::from(u32::MAX) {
                return Err(LaunchError::Large { kernel: kernel(), what, count });
            }
            Ok(count)
        };
        let read = product(in_channels.into(), length, "samples read")?;
        let written = product(out_length, out_channels, "samples written")?;
        let depth = product(in_channels.into(), taps, "weights")?;
        let weights = product(depth, out_channels, "weights")?;
        let bytes = (weights * self.weight.bytes()).next_multiple_of(4);
        let mut slots = vec![
            slot("x", 0, Access::Read, read),
            Slot { name: "weight", binding: 1, access: Access::Read, bytes },
            slot("out", 2, Access::ReadWrite, written),
        ];
        if self.bias {
            slots.push(slot("bias", 4, Access::Read, out_channels.into()));
        }
        // As many channels a step as fit in workgroup memory. One always fits within the limits on taps and strides.
        let (tile_channels, tile_times) = (16 * channels, 16 * times);
        let a_channel = (tile_times - 1) * stride + taps + taps * (tile_channels + 1);
        let step = (MEMORY / a_channel).min(8).min(in_channels);
        if step == 0 {
            let (name, value, needed) = ("samples of an invocation", times, "fewer, for such a stride");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value, needed });
        }
        let number = |name, value: u32| (name, format!("{value}u"));
        let kernel = Kernel {
            name: Self::NAME,
            file: "conv1d.wgsl",
            constants: vec![
                ("STORAGE", self.weight.name().to_owned()),
                ("ACTIVATION", self.activation.name().to_owned()),
                flag("F16", rungs.f16),
                flag("BIAS", self.bias),
                flag("ROWS", self.rows),
                number("TAPS", taps),
                number("STRIDE", stride),
                number("CHANNELS", channels),
                number("TIMES", times),
                number("STEP", step),
            ],
            overrides: Vec::new(),
        };
        let params = Conv1DParams {
            in_channels,
            out_channels,
            kernel_size: taps,
            stride,
            in_length: length,
            out_length: out_length as u32,
            padding,
            _pad0: 0,
        };
        let groups = [(out_length as u32).div_ceil(tile_times), out_channels.div_ceil(tile_channels)];
        launch(kernel, rungs, slots, (3, &params), groups)
    }
}
