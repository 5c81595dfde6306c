//! On platforms without Vulkan wgpu records all steps.

use std::sync::Arc;
use std::time::Duration;

use gyrus_kernels::Access;

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::pipeline::Recipe;

#[derive(Debug)]
pub(crate) enum Recorder {}

#[derive(Debug)]
pub(crate) enum Submission {}

#[derive(Debug)]
pub(crate) enum Compiled {}

#[derive(Debug)]
pub(crate) enum Bound {}

impl Recorder {
    pub(crate) fn new(_: &Gpu) -> Option<Recorder> {
        None
    }

    pub(crate) fn begin(&mut self, _: &Gpu, _: bool) -> Result<(), GpuError> {
        match *self {}
    }

    pub(crate) fn is_done(&mut self, _: &Gpu, _: &mut Submission, _: Duration) -> Result<bool, GpuError> {
        match *self {}
    }

    pub(crate) fn has_results(&mut self, _: &Gpu, _: &mut Submission, _: Duration) -> Result<bool, GpuError> {
        match *self {}
    }

    pub(crate) fn read_marked(
        &mut self,
        _: &Gpu,
        _: &mut Submission,
        _: &mut Vec<u32>,
    ) -> Result<bool, GpuError> {
        match *self {}
    }

    pub(crate) fn mark(&mut self, _: &Gpu, _: &[crate::recorder::Copied<'_>]) -> Result<(), GpuError> {
        match *self {}
    }

    pub(crate) fn finish(&mut self, _: &Gpu, _: Submission, _: &mut Vec<u32>) -> Result<(), GpuError> {
        match *self {}
    }

    pub(crate) fn write(&mut self, _: &Buffer, _: u64, _: &[u32], _: bool) -> Result<(), GpuError> {
        match *self {}
    }

    pub(crate) fn dispatch(&mut self, _: &Gpu, _: &Dispatch) -> Result<(), GpuError> {
        match *self {}
    }

    pub(crate) fn submit(
        &mut self,
        _: &Gpu,
        _: &[crate::recorder::Copied<'_>],
    ) -> Result<Submission, GpuError> {
        match *self {}
    }
}

impl Compiled {
    pub(crate) fn new(_: &Gpu, recipe: &Recipe) -> Result<Compiled, GpuError> {
        Err(recipe.refused("this platform has no Vulkan"))
    }
}

impl Bound {
    pub(crate) fn new(
        _: &Gpu,
        compiled: Arc<Compiled>,
        _: &[(u32, Buffer, Access)],
    ) -> Result<Bound, GpuError> {
        match *compiled {}
    }
}
