//! The resource budget of a render.

use super::error::{Fault, Limit, Outcome};

/// Bytes created or read for one unit of fuel.
const BYTES_PER_FUEL: usize = 32;

const MAX_DEPTH: u32 = 400;

/// Limits of one render, so that no template can run forever or exhaust memory.
///
/// There is no separate memory limit: every byte and every value costs fuel, so a render holds at most about 32 bytes
/// of text, or a hundred bytes of small values, for each unit of fuel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Work: one unit for each evaluated node, visited item, and 32 bytes created or compared.
    pub fuel: u64,
    /// Nested expressions, blocks and macro calls in evaluation; a macro call counts as four. At most 400: more would
    /// not fit the stack of a thread.
    pub depth: u32,
    /// Bytes of rendered text.
    pub output: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { fuel: 16_000_000, depth: MAX_DEPTH, output: 64 << 20 }
    }
}

pub(crate) struct Budget {
    limits: Limits,
    fuel: u64,
    depth: u32,
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Budget {
        let limits = Limits { depth: limits.depth.min(MAX_DEPTH), ..limits };
        Budget { limits, fuel: limits.fuel, depth: 0 }
    }

    pub(crate) fn step(&mut self) -> Outcome<()> {
        self.spend(1)
    }

    /// Charges for creating or reading `bytes`, before it happens.
    pub(crate) fn work(&mut self, bytes: usize) -> Outcome<()> {
        self.spend((bytes / BYTES_PER_FUEL) as u64)
    }

    /// Charges for visiting `count` values.
    pub(crate) fn items(&mut self, count: usize) -> Outcome<()> {
        self.spend(count as u64)
    }

    fn spend(&mut self, units: u64) -> Outcome<()> {
        match self.fuel.checked_sub(units) {
            Some(left) => {
                self.fuel = left;
                Ok(())
            }
            None => {
                self.fuel = 0;
                Err(Fault::limit(Limit::Fuel, self.limits.fuel))
            }
        }
    }

    /// Enters one level. A failure ends the render, so only a success needs `leave`.
    pub(crate) fn enter(&mut self) -> Outcome<()> {
        self.descend(1)
    }

    pub(crate) fn leave(&mut self) {
        self.ascend(1);
    }

    /// Enters `levels` levels: a macro call takes several times the stack of an expression.
    pub(crate) fn descend(&mut self, levels: u32) -> Outcome<()> {
        if self.depth + levels > self.limits.depth {
            return Err(Fault::limit(Limit::Depth, u64::from(self.limits.depth)));
        }
        self.depth += levels;
        Ok(())
    }

    pub(crate) fn ascend(&mut self, levels: u32) {
        self.depth -= levels;
    }

    pub(crate) fn check_output(&self, bytes: usize) -> Outcome<()> {
        if bytes > self.limits.output {
            return Err(Fault::limit(Limit::Output, self.limits.output as u64));
        }
        Ok(())
    }
}
