use std::fmt;
use std::str::FromStr;

/// The device to load a model onto.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Device {
    /// The best hardware GPU if the model fits its memory, else the CPU. [`Model::device`](crate::Model::device)
    /// returns the choice.
    Auto,
    /// The CPU.
    #[default]
    Cpu,
    /// A GPU: the best one, or the first whose name contains this string.
    #[cfg(feature = "gpu")]
    Gpu(Option<String>),
    /// The scalar definition of every op, in f32 with f64 sums whatever the precision, on one thread. It is hundreds of
    /// times slower than [`Device::Cpu`]: to compare others with.
    Reference,
}

impl Device {
    /// Whether a GPU was asked for.
    pub(crate) fn is_gpu(&self) -> bool {
        #[cfg(feature = "gpu")]
        return matches!(self, Device::Gpu(_));
        #[cfg(not(feature = "gpu"))]
        false
    }
}

/// The device that a model runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceInfo {
    /// The CPU.
    Cpu {
        /// Worker threads.
        threads: usize,
        /// Why [`Device::Auto`] did not choose a GPU.
        fallback_reason: Option<String>,
    },
    /// A GPU.
    Gpu {
        /// Its name.
        name: String,
        /// The graphics API, such as Vulkan.
        api: String,
        /// Bytes of GPU memory that were free before loading, if the driver reports them.
        memory: Option<u64>,
    },
    /// The scalar reference.
    Reference,
}

impl fmt::Display for DeviceInfo {
    /// `NVIDIA H200 (Vulkan)`, `the CPU`, `the CPU: no GPU was found`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceInfo::Cpu { fallback_reason: None, .. } => f.write_str("the CPU"),
            DeviceInfo::Cpu { fallback_reason: Some(why), .. } => write!(f, "the CPU: {why}"),
            DeviceInfo::Gpu { name, api, .. } => write!(f, "{name} ({api})"),
            DeviceInfo::Reference => f.write_str("the scalar reference"),
        }
    }
}

/// The string is not the name of a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no device: {KNOWN}")]
pub struct UnknownDevice(String);

const KNOWN: &str = if cfg!(feature = "gpu") {
    "auto, cpu, gpu, or gpu:NAME with a part of a GPU's name; reference for the scalar reference"
} else {
    "auto, cpu and reference are the only ones in this build"
};

impl FromStr for Device {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Device, UnknownDevice> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Device::Auto),
            None if text == "cpu" => Ok(Device::Cpu),
            None if text == "reference" => Ok(Device::Reference),
            #[cfg(feature = "gpu")]
            None if text == "gpu" => Ok(Device::Gpu(None)),
            #[cfg(feature = "gpu")]
            Some(("gpu", name)) if !name.is_empty() => Ok(Device::Gpu(Some(name.to_owned()))),
            _ => Err(UnknownDevice(text.to_owned())),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            #[cfg(feature = "gpu")]
            Device::Gpu(None) => f.write_str("gpu"),
            #[cfg(feature = "gpu")]
            Device::Gpu(Some(name)) => write!(f, "gpu:{name}"),
            Device::Reference => f.write_str("reference"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_round_trip() {
        assert_eq!("cpu".parse(), Ok(Device::Cpu));
        assert_eq!("auto".parse(), Ok(Device::Auto));
        assert_eq!("reference".parse::<Device>().unwrap().to_string(), "reference");
        assert_eq!(Device::Auto.to_string(), "auto");
        #[cfg(feature = "gpu")]
        for name in ["gpu", "gpu:llvmpipe"] {
            assert_eq!(name.parse::<Device>().unwrap().to_string(), name);
        }
        for name in ["", "gpu:", "tpu", "cpu:0"] {
            assert!(name.parse::<Device>().unwrap_err().to_string().contains("is no device"), "{name}");
        }
    }
}
