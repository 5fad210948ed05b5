//! UnitService.

use std::collections::HashMap;

use godel_integration_tests::{
    cluster::Cluster,
    trace::{resources, unit},
};
use godel_proto::v1;
use tonic::Code::{
    self, Aborted, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, ResourceExhausted,
};

use super::{Cases, first, violated_fields};

pub(super) async fn check(cluster: &Cluster, cases: &mut Cases) {
    submit(cluster, cases).await;
    all_at_once(cluster, cases).await;
    submit_stream(cluster, cases).await;
    read(cluster, cases).await;
    change(cluster, cases).await;
}

fn good() -> v1::UnitSpec {
    unit("refused", "", 1, resources(100, 16), None, 0)
}

/// A unit that is good but for what `spoil` does to it.
fn spoilt(spoil: impl FnOnce(&mut v1::UnitSpec)) -> v1::UnitSpec {
    let mut spec = good();
    spoil(&mut spec);
    spec
}

fn with_meta(spoil: impl FnOnce(&mut v1::ObjectMeta)) -> v1::UnitSpec {
    spoilt(|spec| spoil(spec.meta.as_mut().unwrap()))
}

fn with_template(spoil: impl FnOnce(&mut v1::Template)) -> v1::UnitSpec {
    spoilt(|spec| spoil(spec.task_groups[0].template.as_mut().unwrap()))
}

fn with_requests(amounts: impl IntoIterator<Item = (String, i64)>) -> v1::UnitSpec {
    let requests = v1::Resources { amounts: amounts.into_iter().collect() };
    with_template(|template| template.demand.as_mut().unwrap().requests = Some(requests))
}

fn with_devices(kind: &str, count: u32, milli_per_device: u32) -> v1::UnitSpec {
    let devices = v1::DeviceRequest {
        kind: kind.into(),
        count,
        milli_per_device: Some(milli_per_device),
        models: Vec::new(),
        terms: None,
    };
    with_template(|template| template.demand.as_mut().unwrap().devices = vec![devices])
}

fn with_affinity(affinity: v1::UnitAffinity) -> v1::UnitSpec {
    spoilt(|spec| spec.affinity = Some(affinity))
}

fn with_groups(names: &[&str]) -> v1::UnitSpec {
    spoilt(|spec| {
        let group = spec.task_groups[0].clone();
        spec.task_groups =
            names.iter().map(|name| v1::TaskGroup { name: (*name).into(), ..group.clone() }).collect();
    })
}

#[rustfmt::skip]
fn bad_units() -> Vec<(&'static str, v1::UnitSpec, &'static str)> {
    let many_groups: Vec<String> = (0..1_025).map(|number| format!("g{number}")).collect();
    let many_groups: Vec<&str> = many_groups.iter().map(String::as_str).collect();
    let replicas = |replicas| move |spec: &mut v1::UnitSpec| spec.task_groups[0].replicas = replicas;
    vec![
        ("no name", with_meta(|meta| meta.name.clear()), "meta.name"),
        ("a bad name", with_meta(|meta| meta.name = "Not A Name".into()), "meta.name"),
        ("a long name", with_meta(|meta| meta.name = "n".repeat(254)), "meta.name"),
        ("a bad namespace", with_meta(|meta| meta.namespace = "_".into()), "meta.namespace"),
        ("a long namespace", with_meta(|meta| meta.namespace = "n".repeat(64)), "meta.namespace"),
        ("a uid that is no uuid", with_meta(|meta| meta.uid = "42".into()), "meta.uid"),
        ("a long owner", with_meta(|meta| meta.owner = "o".repeat(254)), "meta.owner"),
        ("an unknown workload class", spoilt(|spec| spec.workload_class = 99), "workload_class"),
        ("no task group", spoilt(|spec| spec.task_groups.clear()), "task_groups"),
        ("too many task groups", with_groups(&many_groups), "task_groups"),
        ("two task groups of a name", with_groups(&["a", "a"]), "task_groups[1].name"),
        ("no replicas", spoilt(replicas(0)), "task_groups[0].replicas"),
        ("too many replicas", spoilt(replicas(100_001)), "replicas"),
        ("min_member above replicas", spoilt(|spec| spec.min_member = Some(2)), "min_member"),
        ("a negative request", with_requests([("cpu".to_owned(), -1)]), "task_groups[0].template.demand.requests"),
        ("too many resources", with_requests((0..33).map(|number| (format!("r{number}"), 1))), "requests"),
        ("a resource without a name", with_requests([(String::new(), 1)]), "requests"),
        ("a resource as a device kind", with_devices("cpu", 1, 1000), "devices[0].kind"),
        ("no device", with_devices("gpu", 0, 1000), "devices[0].count"),
        ("too many devices", with_devices("gpu", 65, 1000), "devices[0].count"),
        ("a share of two devices", with_devices("gpu", 2, 500), "devices[0].milli_per_device"),
        ("more than a device", with_devices("gpu", 1, 1001), "devices[0].milli_per_device"),
        ("an unknown pool", spoilt(|spec| spec.pool = 99), "pool"),
        ("an unknown restart policy", spoilt(|spec| spec.restart_policy = 99), "restart_policy"),
        ("a profile that is no name", spoilt(|spec| spec.profile = "Fast!".to_owned()), "profile"),
        ("an unknown toleration effect",
         with_template(|template| template.tolerations = vec![v1::Toleration { effect: 99, ..Default::default() }]),
         "tolerations[0].effect"),
        ("a term of units without a topology key",
         with_affinity(v1::UnitAffinity { near: vec![v1::UnitTerm::default()], ..Default::default() }),
         "affinity.near[0].topology"),
        ("a spread that allows no difference",
         with_affinity(v1::UnitAffinity {
             spread: vec![v1::SpreadTerm { topology: "rack".into(), max_skew: Some(0), ..Default::default() }],
             ..Default::default()
         }),
         "affinity.spread[0].max_skew"),
        ("more than 64 KiB",
         with_template(|template| {
             let env = HashMap::from([("PAD".to_owned(), "x".repeat(65 << 10))]);
             template.run = Some(v1::RunSpec { env, ..Default::default() });
         }), ""),
    ]
}

async fn submit(cluster: &Cluster, cases: &mut Cases) {
    let mut units = cluster.api.units().await.unwrap();
    let result = units.submit_unit(v1::SubmitUnitRequest { unit: None }).await;
    cases.refused("SubmitUnit: nothing", result, InvalidArgument, "unit");
    for (case, spec, field) in bad_units() {
        let result = units.submit_unit(v1::SubmitUnitRequest { unit: Some(spec) }).await;
        cases.refused(&format!("SubmitUnit: {case}"), result, InvalidArgument, field);
    }
    let huge = with_meta(|meta| meta.owner = "x".repeat(3 << 20));
    let result = units.submit_unit(v1::SubmitUnitRequest { unit: Some(huge) }).await;
    cases.refused_by("SubmitUnit: 3 MiB", result, &[InvalidArgument, OutOfRange, ResourceExhausted], "");
}

/// Every wrong field is named in one answer.
async fn all_at_once(cluster: &Cluster, cases: &mut Cases) {
    let mut units = cluster.api.units().await.unwrap();
    let mut spec = with_requests([("cpu".to_owned(), -5)]);
    spec.meta.as_mut().unwrap().name = "Not A Name".into();
    spec.task_groups[0].replicas = 0;
    spec.pool = 99;
    let result = units.submit_unit(v1::SubmitUnitRequest { unit: Some(spec) }).await;
    let violations = result.as_ref().err().map(violated_fields).unwrap_or_default();
    for field in ["meta.name", "replicas", "pool", "requests"] {
        let is_named = violations.iter().any(|violated| violated.contains(field));
        cases.holds(&format!("SubmitUnit: all wrong fields at once, {field} too"), is_named, &violations);
    }
}

async fn submit_stream(cluster: &Cluster, cases: &mut Cases) {
    let mut units = cluster.api.units().await.unwrap();
    let item = |index, unit| v1::SubmitUnitsRequest { index, unit };
    let named = |name: &str| with_meta(|meta| meta.name = name.into());
    // A bad item does not stop the others.
    let items = vec![
        item(0, Some(named("streamed-0"))),
        item(1, Some(named("Not A Name"))),
        item(2, None),
        item(3, Some(named("streamed-3"))),
    ];
    let mut errors = Vec::new();
    let mut durable_below = 0;
    let mut answers = units.submit_units(tokio_stream::iter(items)).await.unwrap().into_inner();
    while let Ok(Some(answer)) = answers.message().await {
        durable_below = durable_below.max(answer.durable_below);
        errors.extend(answer.errors);
    }
    errors.sort_by_key(|error| error.index);
    let indices: Vec<u64> = errors.iter().map(|error| error.index).collect();
    cases.holds("SubmitUnits: the bad items are named", indices == [1, 2], &errors);
    cases.holds("SubmitUnits: the others are durable", durable_below == 4, &durable_below);
    let code = i32::from(InvalidArgument);
    let are_clear = errors.iter().all(|error| error.code == code && !error.violations.is_empty());
    cases.holds("SubmitUnits: with code and violations", are_clear, &errors);

    let items = vec![item(5, Some(named("streamed-5")))];
    let result = first(units.submit_units(tokio_stream::iter(items)).await).await;
    cases.refused("SubmitUnits: not from 0", result, InvalidArgument, "");
    for name in ["streamed-0", "streamed-3"] {
        let request = v1::CancelUnitRequest { name: name.into(), ..Default::default() };
        let result = units.cancel_unit(request).await;
        cases.holds(&format!("CancelUnit: {name}"), result.is_ok(), &result);
    }
}

async fn read(cluster: &Cluster, cases: &mut Cases) {
    let mut units = cluster.api.units().await.unwrap();
    for (case, name, code) in [("no name", "", InvalidArgument), ("an unknown name", "nobody", NotFound)] {
        let result = units.get_unit(v1::GetUnitRequest { name: name.into(), ..Default::default() }).await;
        cases.refused(&format!("GetUnit: {case}"), result, code, "");
    }
    let list = v1::ListUnitsRequest::default;
    for (case, request, field) in [
        ("a large page", v1::ListUnitsRequest { page_size: 1001, ..list() }, "page_size"),
        ("a bad token", v1::ListUnitsRequest { page_token: "x".into(), ..list() }, "page_token"),
        ("an unknown phase", v1::ListUnitsRequest { phase: 99, ..list() }, "phase"),
    ] {
        cases.refused(&format!("ListUnits: {case}"), units.list_units(request).await, InvalidArgument, field);
    }
    let watch = v1::WatchUnitsRequest { name: "nobody".into(), ..Default::default() };
    cases.refused("WatchUnits: an unknown name", first(units.watch_units(watch).await).await, NotFound, "");
}

async fn change(cluster: &Cluster, cases: &mut Cases) {
    let mut units = cluster.api.units().await.unwrap();
    let cancel = |name: &str, expected_revision| v1::CancelUnitRequest {
        name: name.into(),
        expected_revision,
        ..Default::default()
    };
    for (case, request, code) in [
        ("no name", cancel("", 0), InvalidArgument),
        ("an unknown unit", cancel("nobody", 0), NotFound),
        ("another revision", cancel("web", 1), Aborted),
    ] {
        cases.refused(&format!("CancelUnit: {case}"), units.cancel_unit(request).await, code, "");
    }
    let scale =
        |name: &str, replicas| v1::ScaleUnitRequest { name: name.into(), replicas, ..Default::default() };
    let of_group = v1::ScaleUnitRequest { task_group: "nobody".into(), ..scale("web", 2) };
    let at_revision = v1::ScaleUnitRequest { expected_revision: 1, ..scale("web", 2) };
    for (case, request, codes) in [
        ("no name", scale("", 1), &[InvalidArgument][..]),
        ("an unknown unit", scale("nobody", 1), &[NotFound]),
        ("too many replicas", scale("web", 100_001), &[InvalidArgument]),
        ("an unknown group", of_group, &[InvalidArgument, NotFound]),
        ("another revision", at_revision, &[Aborted]),
        ("a cancelled unit", scale("streamed-0", 2), &[FailedPrecondition, Code::NotFound]),
    ] {
        cases.refused_by(&format!("ScaleUnit: {case}"), units.scale_unit(request).await, codes, "");
    }
}
