//! Runs the kernels of Gyrus on any GPU that wgpu reaches.
