//! Which nodes a replica may have and which it prefers: `node_selector` and `node_affinity` of a template.

use godel_domain::{
    label_expression::{BadExpression, LabelExpression, parse},
    node_affinity::split_selector,
};
use godel_proto::v1;
use godel_wire::to_proto::label_expression;

use super::{
    Submit,
    read::{Fields, inside},
};

/// Reads both keys into a template.
pub(super) fn read(fields: &mut Fields<'_, '_>, template: &mut v1::Template) {
    let conditions = fields.map_or_texts("node_selector", parse);
    let mut affinity = fields.inside("node_affinity", affinity).unwrap_or_default();
    template.node_selector = conditions.0.into_iter().collect();
    let (labels, others) = split_selector(conditions.1.into_iter().flatten().collect());
    template.node_selector.extend(labels);
    require(&mut affinity, &others);
    template.node_affinity = (affinity != v1::NodeAffinity::default()).then_some(affinity);
}

fn affinity(fields: &mut Fields<'_, '_>) -> v1::NodeAffinity {
    let required = fields.parsed_texts("required", |text| parse(text).map(|term| node_term(&term)));
    let mut preferred = Vec::new();
    for (node, path) in fields.list("preferred") {
        preferred.extend(inside(node, path, fields.report, |fields| {
            let weight = fields.number("weight").unwrap_or(1);
            let nodes = fields.scalar("nodes", parse);
            let nodes = fields.required("nodes", nodes);
            v1::PreferredNodes { weight, nodes: Some(node_term(&nodes.unwrap_or_default())) }
        }));
    }
    v1::NodeAffinity { required, preferred }
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
