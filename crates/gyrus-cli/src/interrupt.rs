//! Signals. Ctrl-C ends an answer, not the process; a second one ends the process, as do a request to terminate and the
//! loss of the terminal. A server is told of the first of them and ends in good order. Before the process ends, what it began is
//! undone.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};

use gyrus::Cancel;

/// The user interrupted: exit code 130, no message.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The number of the signal that Ctrl-C sends.
const INTERRUPT: i32 = 2;
/// The number of a request to terminate.
const TERMINATE: i32 = 15;

/// The switch of the answer, once there is one.
static CANCEL: OnceLock<Cancel> = OnceLock::new();

/// What is to be undone, in the order it was begun.
static UNDONE: Mutex<BTreeMap<u64, Box<dyn FnMut() + Send>>> = Mutex::new(BTreeMap::new());

/// Who is told of the first signal.
static FIRST: Mutex<First> = Mutex::new(First::Nobody);

enum First {
    Nobody,
    /// Somebody, to be woken.
    Awaited(Option<Waker>),
    Came,
}

/// Ready when Ctrl-C or a request to terminate comes. The next one ends the process with 128 plus its number.
pub(crate) fn first_signal() -> impl Future<Output = ()> {
    *first() = First::Awaited(None);
    listen();
    poll_fn(|context| match &mut *first() {
        First::Awaited(waker) => {
            *waker = Some(context.waker().clone());
            Poll::Pending
        }
        First::Nobody | First::Came => Poll::Ready(()),
    })
}

fn first() -> MutexGuard<'static, First> {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells whoever waits for the first signal. `false` if nobody does.
fn tell_first() -> bool {
    let mut first = first();
    let First::Awaited(waker) = &mut *first else { return false };
    let waker = waker.take();
    *first = First::Came;
    drop(first);
    waker.into_iter().for_each(Waker::wake);
    true
}

/// A switch that Ctrl-C throws. If it is thrown already, Ctrl-C ends the process with 130.
pub(crate) fn on_ctrl_c() -> Cancel {
    listen();
    let cancel = CANCEL.get_or_init(Cancel::new);
    cancel.reset();
    cancel.clone()
}

/// Something that is undone should a signal end the process before this is dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct Undo(u64);

/// Undoes something should a signal end the process. It is called from another thread, whatever this one does.
pub(crate) fn undo(what: impl FnMut() + Send + 'static) -> Undo {
    listen();
    let mut undone = undone();
    let number = undone.last_key_value().map_or(0, |(last, _)| last + 1);
    undone.insert(number, Box::new(what));
    Undo(number)
}

impl Drop for Undo {
    fn drop(&mut self) {
        undone().remove(&self.0);
    }
}

fn undone() -> MutexGuard<'static, BTreeMap<u64, Box<dyn FnMut() + Send>>> {
    UNDONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A signal came.
fn signalled(signal: i32) {
    if matches!(signal, INTERRUPT | TERMINATE) && tell_first() {
        return;
    }
    if signal == INTERRUPT
        && let Some(cancel) = CANCEL.get()
        && !cancel.is_cancelled()
    {
        return cancel.cancel();
    }
    // Held until the end, so that nothing new is begun meanwhile.
    let mut undone = undone();
    for what in undone.values_mut().rev() {
        what();
    }
    std::process::exit(128 + signal);
}

/// Listens to signals from now on. Where that cannot be, they end the process as they always do, which is no reason
/// to fail.
fn listen() {
    static LISTENS: OnceLock<()> = OnceLock::new();
    LISTENS.get_or_init(listen_to_all);
}

#[cfg(unix)]
fn listen_to_all() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    let Ok(mut signals) =
        Signals::new([SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal)))
    else {
        return;
    };
    let _ = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in &mut signals {
            signalled(signal);
        }
    });
}

/// Whether whoever started us wants a signal to be ignored, as `nohup` wants it of SIGHUP.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        // Elsewhere than on Linux it cannot be found out, and a lost terminal ends the process as ever.
        return signal == signal_hook::consts::SIGHUP;
    };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(not(unix))]
fn listen_to_all() {
    let _ = ctrlc::set_handler(|| signalled(INTERRUPT));
}
