//! Chat templates compared with Jinja2, and with random input.

mod fuzz;
mod golden;
mod grid;
mod limits;
mod oracle;
mod random;
mod real;
