//! Which nodes a replica may have, where it goes in relation to running units, and the conditions that both are made of.

use godel_domain::{
    label_expression::{LabelExpression, LabelOperator},
    node_affinity::{NodeAffinity, PreferredNodes},
    unit_affinity::{SpreadTerm, UnitAffinity, UnitTerm},
    unit_topology::{Segments, UnitTopology},
};
use godel_proto::v1;

pub(super) fn node_affinity(affinity: &NodeAffinity) -> v1::NodeAffinity {
    let NodeAffinity { required, preferred } = affinity;
    let preference =
        |one: &PreferredNodes| v1::PreferredNodes { weight: one.weight, nodes: Some(node_term(&one.term)) };
    v1::NodeAffinity {
        required: required.iter().map(|term| node_term(term)).collect(),
        preferred: preferred.iter().map(preference).collect(),
    }
}

fn node_term(term: &[LabelExpression]) -> v1::NodeTerm {
    v1::NodeTerm { all_of: term.iter().map(label_expression).collect() }
}

pub(super) fn unit_affinity(affinity: &UnitAffinity) -> v1::UnitAffinity {
    let UnitAffinity { near, apart, spread } = affinity;
    v1::UnitAffinity {
        near: near.iter().map(unit_term).collect(),
        apart: apart.iter().map(unit_term).collect(),
        spread: spread.iter().map(spread_term).collect(),
    }
}

fn unit_term(term: &UnitTerm) -> v1::UnitTerm {
    let UnitTerm { units, topology, weight } = term;
    let units = units.iter().map(label_expression).collect();
    v1::UnitTerm { units, topology: topology.clone(), weight: *weight }
}

fn spread_term(term: &SpreadTerm) -> v1::SpreadTerm {
    let SpreadTerm { units, topology, max_skew, weight } = term;
    let units = units.iter().map(label_expression).collect();
    v1::SpreadTerm { units, topology: topology.clone(), max_skew: Some(*max_skew), weight: *weight }
}

/// A condition on one label.
pub fn label_expression(expression: &LabelExpression) -> v1::LabelExpression {
    let LabelExpression { key, operator, values } = expression;
    v1::LabelExpression {
        key: key.clone(),
        operator: label_operator(*operator).into(),
        values: values.clone(),
    }
}

/// What an expression says of a value.
pub fn label_operator(operator: LabelOperator) -> v1::LabelOperator {
    match operator {
        LabelOperator::In => v1::LabelOperator::In,
        LabelOperator::NotIn => v1::LabelOperator::NotIn,
        LabelOperator::Exists => v1::LabelOperator::Exists,
        LabelOperator::DoesNotExist => v1::LabelOperator::DoesNotExist,
        LabelOperator::Gt => v1::LabelOperator::Gt,
        LabelOperator::Lt => v1::LabelOperator::Lt,
    }
}

/// Where the running units of a unit go in relation to one another.
pub(super) fn unit_topology(topology: &UnitTopology) -> v1::UnitTopology {
    let UnitTopology { required, preferred, homogeneous, segments } = topology;
    v1::UnitTopology {
        required: required.clone(),
        preferred: preferred.clone(),
        homogeneous: homogeneous.clone(),
        segments: segments.as_ref().map(|segments| {
            let Segments { size, within } = segments;
            v1::Segments { size: *size, within: within.clone() }
        }),
    }
}
