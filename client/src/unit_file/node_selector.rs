//! Which nodes a replica may have and which it prefers: `node_selector` and `node_affinity` of a template.

use std::collections::HashMap;

use godel_domain::{
    label_expression::{BadExpression, LabelExpression, parse},
    node_affinity::split_selector,
};
use godel_proto::v1;
use godel_wire::to_proto::label_expression;

use super::{
    Submit,
    notation::{InFile, Notation},
    unit_affinity::{conditions, shown},
    yaml_out::Yaml,
};

/// Both keys of a template: labels by key, or conditions as texts, some of which only `node_affinity` has.
pub(super) fn visit(
    labels: &mut HashMap<String, String>,
    affinity: &mut Option<v1::NodeAffinity>,
    file: &mut impl Notation,
) {
    const KEY: &str = "node_selector";
    let mut conditions: Vec<Vec<LabelExpression>> = Vec::new();
    if file.has_text(KEY) {
        let mut one = None;
        file.scalar(KEY, &mut one, parse, |_| Yaml::map());
        conditions.extend(one);
    } else if file.has_list(KEY) {
        file.scalars(KEY, &mut conditions, parse, |_| Yaml::map());
    } else {
        file.texts_by_key(KEY, labels);
    }
    file.inside_unless_empty("node_affinity", affinity);
    let (more, others) = split_selector(conditions.into_iter().flatten().collect());
    labels.extend(more);
    if !others.is_empty() {
        require(affinity.get_or_insert_default(), &others);
    }
}

impl InFile for v1::NodeAffinity {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { required, preferred } = self;
        file.scalars(
            "required",
            required,
            |text| conditions(text).map(|all_of| v1::NodeTerm { all_of }),
            |term| shown(&term.all_of),
        );
        file.messages("preferred", preferred, &v1::PreferredNodes { weight: 1, nodes: None });
    }
}

impl InFile for v1::PreferredNodes {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { weight, nodes } = self;
        file.number("weight", weight);
        let mut term = nodes.take().map(|term| term.all_of);
        file.scalar("nodes", &mut term, conditions, |term| shown(term));
        file.require("nodes");
        *nodes = Some(v1::NodeTerm { all_of: term.unwrap_or_default() });
    }
}

fn node_term(conditions: &[LabelExpression]) -> v1::NodeTerm {
    v1::NodeTerm { all_of: conditions.iter().map(label_expression).collect() }
}

/// Requires conditions of every term, beside what the terms say.
fn require(affinity: &mut v1::NodeAffinity, conditions: &[LabelExpression]) {
    if conditions.is_empty() {
        return;
    }
    if affinity.required.is_empty() {
        affinity.required.push(v1::NodeTerm::default());
    }
    for term in &mut affinity.required {
        term.all_of.extend(conditions.iter().map(label_expression));
    }
}

/// Reads what the flags say: selectors that must all hold, terms one of which must, and preferences as `WEIGHT:SELECTOR`.
///
/// # Errors
/// The flag, and what is wrong with its value.
pub(super) fn of_flags(submit: &Submit, template: &mut v1::Template) -> Result<(), String> {
    let of_flag = |flag: &'static str, text: &str| {
        parse(text).map_err(|wrong: BadExpression| format!("{flag}: {wrong}"))
    };
    let mut conditions = Vec::new();
    for text in &submit.node_selector {
        conditions.extend(of_flag("--node-selector", text)?);
    }
    let mut affinity = v1::NodeAffinity::default();
    for text in &submit.require_nodes {
        affinity.required.push(node_term(&of_flag("--require-nodes", text)?));
    }
    for text in &submit.prefer_nodes {
        let flag = "--prefer-nodes";
        let (weight, nodes) = text.split_once(':').unwrap_or(("1", text));
        let weight = weight.trim().parse().map_err(|_| {
            format!("{flag}: `{weight}` is not a weight; expected `WEIGHT:SELECTOR`, as `10:disk=ssd`")
        })?;
        let nodes = node_term(&of_flag(flag, nodes)?);
        affinity.preferred.push(v1::PreferredNodes { weight, nodes: Some(nodes) });
    }
    let (labels, others) = split_selector(conditions);
    template.node_selector = labels.into_iter().collect();
    require(&mut affinity, &others);
    template.node_affinity = (affinity != v1::NodeAffinity::default()).then_some(affinity);
    Ok(())
}
