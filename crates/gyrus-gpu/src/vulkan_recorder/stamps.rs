//! Timestamps of submissions, while it is measured how long the GPU is busy.

use ash::vk;

use super::Submission;

impl Submission {
    /// Records the first timestamp, before any other command, if they are `wanted`.
    pub(super) fn begin_stamps(
        &mut self,
        commands: vk::CommandBuffer,
        wanted: bool,
    ) -> Result<(), vk::Result> {
        self.stamped = wanted;
        if !wanted {
            return Ok(());
        }
        // SAFETY: the pool belongs to the device, has two queries, and no submitted command uses it. The queue has
        // timestamps, since they are wanted only if the device has wgpu's feature.
        unsafe {
            let pool = match self.stamps {
                Some(pool) => pool,
                None => {
                    let info = vk::QueryPoolCreateInfo::default();
                    let info = info.query_type(vk::QueryType::TIMESTAMP).query_count(2);
                    *self.stamps.insert(self.raw.create_query_pool(&info, None)?)
                }
            };
            self.raw.cmd_reset_query_pool(commands, pool, 0, 2);
            // When the device has reached these commands, even if earlier ones still run: intervals may overlap.
            self.raw.cmd_write_timestamp(commands, vk::PipelineStageFlags::TOP_OF_PIPE, pool, 0);
        }
        Ok(())
    }

    /// Records the last timestamp, after all other commands.
    pub(super) fn end_stamps(&self, commands: vk::CommandBuffer) {
        if let Some(pool) = self.stamps.filter(|_| self.stamped) {
            // SAFETY: as above.
            unsafe {
                self.raw.cmd_write_timestamp(commands, vk::PipelineStageFlags::BOTTOM_OF_PIPE, pool, 1)
            };
        }
    }

    /// The timestamps of commands that have completed, in ticks of the device's clock.
    pub(super) fn stamps(&self) -> Result<Option<[u64; 2]>, vk::Result> {
        let Some(pool) = self.stamps.filter(|_| self.stamped) else { return Ok(None) };
        let mut ticks = [0u64; 2];
        // SAFETY: both queries were written, since the commands have completed, and each takes 64 bits.
        unsafe { self.raw.get_query_pool_results(pool, 0, &mut ticks, vk::QueryResultFlags::TYPE_64)? };
        Ok(Some(ticks))
    }
}
