//! The parsed form of a template.

use std::sync::Arc;

/// An expression, and the byte offset for its errors.
#[derive(Debug)]
pub(crate) struct Expr {
    pub(crate) at: u32,
    /// The height of this expression's tree, which is the depth of recursion of its evaluation.
    pub(crate) height: u16,
    pub(crate) kind: ExprKind,
}

#[derive(Debug)]
pub(crate) enum ExprKind {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Unary(Unary, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    /// `a ~ b ~ c`
    Concat(Vec<Expr>),
    /// `a < b <= c`
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// `a if test else b`
    Choice {
        test: Box<Expr>,
        then: Box<Expr>,
        otherwise: Option<Box<Expr>>,
    },
    Attribute(Box<Expr>, Arc<str>),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, Box<[Option<Box<Expr>>; 3]>),
    /// The subject is absent in the first filter of a filter block.
    Filter(Option<Box<Expr>>, Arc<str>, Box<Args>),
    Test(Box<Expr>, Arc<str>, Box<Args>),
    Call(Box<Expr>, Box<Args>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Not,
    Minus,
    Plus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

/// The arguments of a call, filter or test.
#[derive(Debug, Default)]
pub(crate) struct Args {
    pub(crate) positional: Vec<Expr>,
    pub(crate) named: Vec<(Arc<str>, Expr)>,
    /// `*rest`
    pub(crate) list: Option<Box<Expr>>,
    /// `**rest`
    pub(crate) dict: Option<Box<Expr>>,
}

/// The target of an assignment or a loop.
#[derive(Debug)]
pub(crate) enum Target {
    Name(Arc<str>),
    /// `namespace.attribute`
    Member(Arc<str>, Arc<str>, u32),
    Tuple(Vec<Target>),
}

/// A statement or literal text.
#[derive(Debug)]
pub(crate) enum Stmt {
    Text(Arc<str>),
    Print(Expr),
    If {
        branches: Vec<(Expr, Vec<Stmt>)>,
        otherwise: Vec<Stmt>,
    },
    For(Box<ForLoop>),
    Set(Target, Expr, u32),
    /// `{% set x %}…{% endset %}`, with filters applied to the captured text.
    SetBlock {
        target: Target,
        filter: Option<Expr>,
        body: Vec<Stmt>,
        at: u32,
    },
    Macro(Box<Macro>),
    /// `{% call(args) f() %}…{% endcall %}`
    CallBlock {
        call: Expr,
        caller: Box<Macro>,
    },
    FilterBlock(Expr, Vec<Stmt>),
    With(Vec<(Target, Expr)>, Vec<Stmt>, u32),
    /// A block that only creates a scope: `block`, `generation`.
    Scope(Vec<Stmt>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(crate) struct ForLoop {
    pub(crate) target: Target,
    pub(crate) iter: Expr,
    pub(crate) filter: Option<Expr>,
    pub(crate) recursive: bool,
    pub(crate) body: Vec<Stmt>,
    pub(crate) otherwise: Vec<Stmt>,
    pub(crate) at: u32,
}

#[derive(Debug)]
pub(crate) struct Macro {
    pub(crate) name: Arc<str>,
    pub(crate) parameters: Vec<(Arc<str>, Option<Expr>)>,
    pub(crate) body: Vec<Stmt>,
    /// Whether the body uses `varargs`, `kwargs` or `caller`; only then does the macro accept them.
    pub(crate) takes_varargs: bool,
    pub(crate) takes_kwargs: bool,
    pub(crate) takes_caller: bool,
}
