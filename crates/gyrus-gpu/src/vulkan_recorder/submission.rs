//! Commands that were submitted: when they have completed, and how they are used again.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;
use wgpu::hal::{self, CommandEncoder as _};

use crate::buffer::Buffer;

/// How often the host looks whether a mark was reached: it cannot wait for one.
const LOOK: Duration = Duration::from_micros(10);

/// Submitted commands, and the buffer through which their results are read back.
pub(crate) struct Submission {
    pub(super) raw: Arc<ash::Device>,
    /// Dropped unless its commands may still run.
    pub(super) encoder: ManuallyDrop<hal::vulkan::CommandEncoder>,
    /// Commands that run, or have run and were not waited for.
    pub(super) commands: Option<hal::vulkan::CommandBuffer>,
    pub(super) done: vk::Fence,
    /// How long its commands may run.
    pub(super) patience: Duration,
    pub(super) readback: Buffer,
    /// Bytes that the commands copy to `readback`.
    pub(super) copied: u64,
    /// Set behind the copies, if commands follow them that nobody waits for.
    pub(super) mark: Option<vk::Event>,
    /// Whether the commands set it, and their results were not read yet.
    pub(super) is_marked: bool,
    /// Timestamps of the beginning and the end, if they were ever measured.
    pub(super) stamps: Option<vk::QueryPool>,
    /// Whether the commands write them.
    pub(super) stamped: bool,
}

impl Submission {
    /// Waits at most this long for its commands, if there are any, and resets it for reuse. `false`: they still run.
    pub(super) fn wait(&mut self, most: Duration) -> Result<bool, vk::Result> {
        if self.commands.is_none() {
            return Ok(true);
        }
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the commands were submitted with this fence once, and it was not waited for.
        let done = match unsafe { self.raw.wait_for_fences(&[self.done], true, most) } {
            Err(vk::Result::TIMEOUT) => return Ok(false),
            // The commands may still run, so they are not reset.
            Err(error) if error != vk::Result::ERROR_DEVICE_LOST => return Err(error),
            done => done,
        };
        // SAFETY: the commands are complete and can be reset; so they can if the device is lost.
        unsafe {
            self.encoder.reset_all(self.commands.take().into_iter());
            done?;
            self.raw.reset_fences(&[self.done])?;
        }
        Ok(true)
    }

    /// Waits at most this long for the results of its commands. `false`: they are not there yet.
    pub(super) fn wait_for_results(&mut self, most: Duration) -> Result<bool, vk::Result> {
        let Some(mark) = self.mark.filter(|_| self.is_marked && self.commands.is_some()) else {
            return self.wait(most);
        };
        let begun = Instant::now();
        // SAFETY: the event belongs to the device. It was reset before its commands were recorded.
        while !unsafe { self.raw.get_event_status(mark) }? {
            let left = most.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            std::thread::sleep(left.min(LOOK));
        }
        Ok(true)
    }

    /// Begins to record a mark: the event that commands set.
    pub(super) fn reset_mark(&mut self) -> Result<vk::Event, vk::Result> {
        let mark = match self.mark {
            Some(mark) => mark,
            // SAFETY: the device outlives the event, which `drop` destroys.
            None => unsafe { self.raw.create_event(&vk::EventCreateInfo::default(), None)? },
        };
        self.mark = Some(mark);
        // SAFETY: no commands that set it run: those of this submission are not submitted yet.
        unsafe { self.raw.reset_event(mark)? };
        Ok(mark)
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        // If the device is lost, the next call returns that. What a device that hangs may still use is not freed.
        let _ = self.wait(self.patience);
        if self.commands.is_some() {
            return;
        }
        // SAFETY: nothing waits for the fence or the event or signals them any more, no command writes timestamps or runs,
        // and the encoder is not used again.
        unsafe {
            self.raw.destroy_fence(self.done, None);
            self.raw.destroy_event(self.mark.unwrap_or_default(), None);
            self.raw.destroy_query_pool(self.stamps.unwrap_or_default(), None);
            ManuallyDrop::drop(&mut self.encoder);
        }
    }
}

impl std::fmt::Debug for Submission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Submission({:?})", self.done)
    }
}
