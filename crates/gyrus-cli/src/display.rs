//! Keeps the Wayland library from printing an error when GPUs are listed.
//!
//! On Linux, Mesa's layer that orders Vulkan devices asks the Wayland server which one drives the display. Where
//! `XDG_RUNTIME_DIR` names no folder the Wayland library cannot look for a server, and says so on our stderr, once for
//! each time that devices are listed. It keeps quiet if `WAYLAND_DISPLAY` is an absolute path: that there is no server
//! at it is an ordinary answer. A process must not change its own environment once others may read it, so this one
//! starts itself anew with that variable, before it has done anything.

#[cfg(target_os = "linux")]
use std::ffi::OsString;
#[cfg(target_os = "linux")]
use std::path::Path;
#[cfg(target_os = "linux")]
use std::process::Command;

use crate::cli;

/// A path at which no server listens.
#[cfg(target_os = "linux")]
const NOWHERE: &str = "/nonexistent/wayland";

/// Starts the program anew if this command lists GPUs and a library would complain. It returns where there is nothing
/// to do, or where that fails: then a line too many is said.
#[cfg(target_os = "linux")]
pub(crate) fn hide(command: &cli::Command) {
    use std::os::unix::process::CommandExt;

    if !command.lists_gpus() || !complains(|name| std::env::var_os(name)) {
        return;
    }
    let mut arguments = std::env::args_os();
    let (Ok(program), Some(name)) = (std::env::current_exe(), arguments.next()) else { return };
    let _ = Command::new(program).arg0(name).args(arguments).env("WAYLAND_DISPLAY", NOWHERE).exec();
}

/// Elsewhere there is no such library.
#[cfg(not(target_os = "linux"))]
pub(crate) fn hide(_command: &cli::Command) {}

/// Whether the Wayland library would complain: it has no socket, no path of one and no folder to look in.
#[cfg(target_os = "linux")]
fn complains(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_path = |name: &str| variable(name).is_some_and(|value| Path::new(&value).is_absolute());
    variable("WAYLAND_SOCKET").is_none() && !is_path("WAYLAND_DISPLAY") && !is_path("XDG_RUNTIME_DIR")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_look_in_keeps_the_library_quiet() {
        let complains = |variables: &[(&str, &str)]| {
            complains(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        };
        assert!(complains(&[]));
        assert!(complains(&[("XDG_RUNTIME_DIR", "")]));
        assert!(complains(&[("WAYLAND_DISPLAY", "wayland-0")]));
        assert!(!complains(&[("WAYLAND_DISPLAY", NOWHERE)]));
        assert!(!complains(&[("XDG_RUNTIME_DIR", "/run/user/1000")]));
        assert!(!complains(&[("WAYLAND_SOCKET", "3")]));
    }
}
