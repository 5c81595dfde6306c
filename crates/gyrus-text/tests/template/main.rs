//! Chat templates against Jinja2, and against garbage.

mod fuzz;
mod golden;
mod grid;
mod limits;
mod oracle;
mod random;
mod real;
