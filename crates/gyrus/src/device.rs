use std::fmt;
use std::str::FromStr;

/// Where a model computes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Device {
    /// The best GPU, if there is a real one and the model fits it, else the CPU: [`Model::place`](crate::Model::place)
    /// tells which.
    Auto,
    /// This machine's processor.
    #[default]
    Cpu,
    /// A GPU: the best there is, or the first whose name contains this.
    #[cfg(feature = "gpu")]
    Gpu(Option<String>),
}

/// Not the name of a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no device: {KNOWN}")]
pub struct UnknownDevice(String);

const KNOWN: &str = if cfg!(feature = "gpu") {
    "auto, cpu, gpu, or gpu:NAME with a part of a GPU's name"
} else {
    "auto and cpu are the only ones in this build"
};

impl FromStr for Device {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Device, UnknownDevice> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Device::Auto),
            None if text == "cpu" => Ok(Device::Cpu),
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        assert_eq!("cpu".parse(), Ok(Device::Cpu));
        assert_eq!("auto".parse(), Ok(Device::Auto));
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
