//! The heads of classifiers, which rerankers are, and the tensors of heads that an encoder does not use.

use gyrus_kernels::{Activation, BufferId, Op, Rows};

use super::config::HeadKind;
use super::names::{Names, Tensor};
use super::plan::{Builder, EncoderTask};
use crate::Error;

impl Builder<'_> {
    /// The scores of a classifier, from the first row of a text.
    pub(super) fn classifier(&mut self, first: BufferId) -> Result<BufferId, Error> {
        let dim = self.config.dim;
        let mut x = first;
        let kind = self.head_kind();
        if kind != HeadKind::Plain {
            let dense = self.buffer("head", dim, Rows::Logits);
            let weights = vec![self.matrix(&self.names.weight(Tensor::HeadDense), &[dim, dim])?];
            self.ops.push(Op::MatMul { x, weights, accumulate: false, out: dense });
            self.bias(Tensor::HeadDense, dim, 0, dense)?;
            let activation = if kind == HeadKind::Tanh { Activation::Tanh } else { self.config.activation };
            self.ops.push(Op::Activate { x: dense, activation });
            if kind == HeadKind::Norm {
                self.norm(Tensor::HeadNorm, dense, dense)?;
            }
            x = dense;
        }
        let name = self.names.weight(Tensor::HeadOutput);
        let labels = self.weights.find(&name)?.shape.rows();
        let scores = self.buffer("scores", labels, Rows::Logits);
        let weights = vec![self.table(&name, &[labels, dim])?];
        self.ops.push(Op::MatMul { x, weights, accumulate: false, out: scores });
        self.bias(Tensor::HeadOutput, labels, 0, scores)?;
        Ok(scores)
    }

    fn head_kind(&self) -> HeadKind {
        let has = |tensor| self.weights.tensor(&self.names.weight(tensor)).is_some();
        match (has(Tensor::HeadDense), has(Tensor::HeadNorm)) {
            (true, true) => HeadKind::Norm,
            (true, false) => HeadKind::Tanh,
            (false, _) => HeadKind::Plain,
        }
    }

    /// Skips the tensors of heads that the task does not use: poolers, masked language models, classifiers.
    pub(super) fn skip_other_heads(&mut self, task: EncoderTask) {
        let prefix = self.names.prefix();
        self.weights.skip_head(format!("{prefix}embeddings.position_ids"));
        if let Names::Gguf { .. } = self.names {
            if task == EncoderTask::Embed {
                self.weights.skip_head("cls.".to_owned());
            }
            return;
        }
        for head in ["cls.", "lm_head.", "head.", "decoder.", "classifier."] {
            if task == EncoderTask::Embed || !(head == "head." || head == "classifier.") {
                self.weights.skip_head(head.to_owned());
            }
        }
        if task == EncoderTask::Embed || prefix == "roberta." {
            self.weights.skip_head(format!("{prefix}pooler."));
        }
    }
}
