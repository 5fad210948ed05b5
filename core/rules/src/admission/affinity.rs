//! Checks of which nodes a replica may have and which it prefers, and of where it goes in relation to running units.

use std::borrow::Cow;

use godel_domain::{
    defaults::{AppliedDefault, DefaultValue, MAX_SKEW},
    label_expression::LabelExpression,
    names::{self, ENTRIES_MAX},
    node_affinity::{NodeAffinity, NodeTerm, PREFERENCE_WEIGHT_MAX, PreferredNodes},
    submission::{
        ExpressionSubmission, Given, NodeAffinitySubmission, SpreadSubmission, UnitAffinitySubmission,
        UnitTermSubmission,
    },
    unit_affinity::{MAX_SKEW_MAX, N_TERMS_MAX, SpreadTerm, TERM_WEIGHT_MAX, UnitAffinity, UnitTerm},
};

use super::ViolationList;

/// Most terms, required or preferred: each is looked at for every node.
const TERMS_MAX: usize = 16;

pub(super) fn node_affinity(
    idx: usize,
    given: NodeAffinitySubmission,
    report: &mut ViolationList,
) -> NodeAffinity {
    let field = |leaf: &str| format!("task_groups[{idx}].template.node_affinity.{leaf}");
    for (leaf, n_terms) in [("required", given.required.len()), ("preferred", given.preferred.len())] {
        if n_terms > TERMS_MAX {
            report.add(field(leaf), format_args!("{n_terms} terms; at most {TERMS_MAX}"));
        }
    }
    let required = given.required.into_iter().take(TERMS_MAX).enumerate();
    let required = required.map(|(at, one)| term(&field(&format!("required[{at}]")), one, report)).collect();
    let preferred = given.preferred.into_iter().take(TERMS_MAX).enumerate();
    let preferred = preferred.map(|(at, (weight, one))| {
        if !(1..=PREFERENCE_WEIGHT_MAX).contains(&weight) {
            report.add(
                field(&format!("preferred[{at}].weight")),
                format_args!("{weight} is not in 1..={PREFERENCE_WEIGHT_MAX}"),
            );
        }
        PreferredNodes { weight, term: term(&field(&format!("preferred[{at}].nodes")), one, report) }
    });
    NodeAffinity { required, preferred: preferred.collect() }
}

fn term(path: &str, given: Vec<ExpressionSubmission>, report: &mut ViolationList) -> NodeTerm {
    if given.is_empty() {
        report.add(path, "a term has one condition at least");
    }
    conditions(&format!("{path}.all_of"), given, report)
}

fn conditions(
    path: &str,
    given: Vec<ExpressionSubmission>,
    report: &mut ViolationList,
) -> Vec<LabelExpression> {
    if given.len() > ENTRIES_MAX {
        report.add(path, format_args!("{} conditions; at most {ENTRIES_MAX}", given.len()));
    }
    let given = given.into_iter().take(ENTRIES_MAX).enumerate();
    given.filter_map(|(at, one)| expression(&format!("{path}[{at}]"), one, report)).collect()
}

pub(super) fn unit_affinity(
    given: UnitAffinitySubmission,
    report: &mut ViolationList,
    defaults: &mut Vec<AppliedDefault>,
) -> UnitAffinity {
    let UnitAffinitySubmission { near, apart, spread } = given;
    let near = unit_terms("near", near, report);
    let apart = unit_terms("apart", apart, report);
    check_number_of_terms("spread", spread.len(), report);
    let spread = spread.into_iter().take(N_TERMS_MAX).enumerate();
    let spread = spread.map(|(at, given)| {
        let path = format!("affinity.spread[{at}]");
        let SpreadSubmission { units, topology, max_skew, weight } = given;
        let UnitTerm { units, topology, weight } =
            unit_term(&path, UnitTermSubmission { units, topology, weight }, report);
        let max_skew = max_skew.unwrap_or_else(|| {
            let value = DefaultValue::Number(i64::from(MAX_SKEW));
            defaults.push(AppliedDefault { field: Cow::Owned(format!("{path}.max_skew")), value });
            MAX_SKEW
        });
        if !(1..=MAX_SKEW_MAX).contains(&max_skew) {
            report.add(
                format_args!("{path}.max_skew"),
                format_args!("{max_skew} is not in 1..={MAX_SKEW_MAX}"),
            );
        }
        SpreadTerm { units, topology, max_skew, weight }
    });
    UnitAffinity { near, apart, spread: spread.collect() }
}

fn check_number_of_terms(kind: &str, n_terms: usize, report: &mut ViolationList) {
    if n_terms > N_TERMS_MAX {
        report.add(format_args!("affinity.{kind}"), format_args!("{n_terms} terms; at most {N_TERMS_MAX}"));
    }
}

fn unit_terms(kind: &str, given: Vec<UnitTermSubmission>, report: &mut ViolationList) -> Vec<UnitTerm> {
    check_number_of_terms(kind, given.len(), report);
    let given = given.into_iter().take(N_TERMS_MAX).enumerate();
    given.map(|(at, one)| unit_term(&format!("affinity.{kind}[{at}]"), one, report)).collect()
}

fn unit_term(path: &str, given: UnitTermSubmission, report: &mut ViolationList) -> UnitTerm {
    let UnitTermSubmission { units, topology, weight } = given;
    let units = conditions(&format!("{path}.units"), units, report);
    report.named(format_args!("{path}.topology"), names::label_key(&topology));
    if weight > TERM_WEIGHT_MAX {
        report.add(
            format_args!("{path}.weight"),
            format_args!("{weight} is not in 0..={TERM_WEIGHT_MAX}; with 0 the term is required"),
        );
    }
    UnitTerm { units, topology, weight }
}

/// A condition on a label; `None`: it makes no sense.
pub(super) fn expression(
    path: &str,
    given: ExpressionSubmission,
    report: &mut ViolationList,
) -> Option<LabelExpression> {
    let ExpressionSubmission { key, operator, values } = given;
    let operator = match operator {
        Given::Value(operator) => operator,
        Given::Absent => {
            report.add(format_args!("{path}.operator"), "is required");
            return None;
        }
        Given::Unknown(code) => {
            report.add(format_args!("{path}.operator"), format_args!("{code} stands for nothing"));
            return None;
        }
    };
    if values.len() > ENTRIES_MAX {
        report.add(
            format_args!("{path}.values"),
            format_args!("{} values; at most {ENTRIES_MAX}", values.len()),
        );
    }
    let expression = LabelExpression { key, operator, values };
    if let Err(wrong) = expression.check() {
        report.add(path, wrong);
    }
    Some(expression)
}
