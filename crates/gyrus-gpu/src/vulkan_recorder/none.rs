//! On platforms without Vulkan wgpu records all steps.

use std::sync::Arc;

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

pub(crate) struct Recording<'r>(&'r Recorder);

impl Recorder {
    pub(crate) fn new(_: &Gpu) -> Option<Recorder> {
        None
    }

    pub(crate) fn begin(&mut self, _: &Gpu, _: bool) -> Result<Recording<'_>, GpuError> {
        match *self {}
    }

    pub(crate) fn wait(&mut self, _: &Gpu, _: Submission, _: Option<&mut Vec<u32>>) -> Result<(), GpuError> {
        match *self {}
    }
}

impl Recording<'_> {
    pub(crate) fn write(&mut self, _: &Buffer, _: u64, _: &[u32]) -> Result<(), GpuError> {
        match *self.0 {}
    }

    pub(crate) fn dispatch(&mut self, _: &Gpu, _: &Dispatch) -> Result<(), GpuError> {
        match *self.0 {}
    }

    pub(crate) fn submit(self, _: &Gpu, _: Option<&Buffer>) -> Result<Submission, GpuError> {
        match *self.0 {}
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
