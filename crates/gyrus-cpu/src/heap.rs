//! The heap of the process.

/// Buffers from this size on are mapped by themselves, and as much free memory stays at the end of an arena.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: usize = 1 << 20;

/// Makes the allocator return large buffers to the system when they are freed, for processes that load and unload models.
///
/// glibc raises its limit for that to the size of the largest buffer that was freed, up to 32 MiB, and keeps twice as much at
/// the end of each arena. There is an arena for each thread that allocated when others did. So a process that freed a model
/// keeps many times its buffers, more or less by chance. Buffers of less than a MiB are not affected.
///
/// Elsewhere it does nothing.
pub fn return_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;

        /// Options of malloc.h.
        const M_TRIM_THRESHOLD: c_int = -1;
        const M_MMAP_THRESHOLD: c_int = -3;
        unsafe extern "C" {
            fn mallopt(option: c_int, value: c_int) -> c_int;
        }
        // SAFETY: the function of glibc, as malloc.h declares it. Other threads may allocate meanwhile: it takes their locks.
        unsafe {
            mallopt(M_MMAP_THRESHOLD, LARGE as c_int);
            mallopt(M_TRIM_THRESHOLD, LARGE as c_int);
        }
    }
}

/// Returns free pages of the heap to the system, where the allocator keeps them otherwise.
///
/// glibc returns only the end of an arena. So a process that had many requests at once stays as large as it ever was, and
/// grows while small allocations that live on are scattered over the arenas. The pages between them are returned here. Other
/// threads wait for an arena while it is looked through.
///
/// Elsewhere it does nothing.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: the function of glibc, as malloc.h declares it. Any thread may call it at any time.
        unsafe {
            malloc_trim(0);
        }
    }
}
