//! The heap of the process.

/// Buffers from this size on are mapped by themselves.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: usize = 1 << 20;

/// Free memory from this size on does not stay at the end of an arena.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const END: usize = 128 << 10;

/// Makes the allocator keep little memory that was freed, for processes that run for long, and load and unload models. It is
/// called before threads are started: they keep the arenas that they have.
///
/// glibc makes up to eight arenas for each CPU, and keeps free memory at the end of each. [`release_free_memory`] returns the
/// end of the main arena only. So a server would grow until all arenas are as large as they can be. Here new threads share
/// the arenas that exist. That costs no time: threads have caches of small buffers, and decoding allocates nothing.
///
/// glibc maps large buffers by themselves. It raises the limit of that to the size of the largest buffer that was freed, up to
/// 32 MiB, and keeps twice as much at the end of an arena. Here both limits stay as they are.
///
/// Elsewhere it does nothing.
pub fn limit_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;

        /// Options of malloc.h.
        const M_TRIM_THRESHOLD: c_int = -1;
        const M_MMAP_THRESHOLD: c_int = -3;
        const M_ARENA_MAX: c_int = -8;
        unsafe extern "C" {
            fn mallopt(option: c_int, value: c_int) -> c_int;
        }
        // SAFETY: the function of glibc, as malloc.h declares it. Other threads may allocate meanwhile: it takes their locks.
        unsafe {
            mallopt(M_ARENA_MAX, 1);
            mallopt(M_MMAP_THRESHOLD, LARGE as c_int);
            mallopt(M_TRIM_THRESHOLD, END as c_int);
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
