use godel_base::{
    ids::{NodeId, ReplicaId, Revision},
    resources::Resources,
};
use godel_domain::{
    allocation::{Allocation, CoreSet, DeviceSet, GivenZones, ZoneSet},
    demand::{Demand, DeviceRequest, Pool},
    run_end::{RunEnd, RunEndReason},
    running_units::{
        Bind, Compaction, EVICTED_BY_LEN_MAX, EvictionReason, LastEviction, N_EVICTIONS_MAX,
        N_PREEMPTORS_MAX, Phase, Requeue, RunChange, RunEnds, RunningUnit, RunningUnits, Statuses,
    },
};
use prost::Message as _;

use super::*;
use crate::to_proto;

fn demand() -> Demand {
    let requests = Resources::new([("cpu", 500), ("memory", 1 << 30)]).unwrap();
    let devices =
        DeviceRequest { kind: "gpu".into(), count: 1, milli: 300, models: vec!["A10".into()], terms: None };
    let nic = DeviceRequest { kind: "nic".into(), count: 2, milli: 1_000, models: Vec::new(), terms: None };
    Demand { requests, devices: vec![devices, nic], host_ports: Vec::new(), zones: None }
}

/// Rows with two groups, every phase kind, an eviction, a requeue and holes.
fn rows() -> RunningUnits {
    let mut rows = RunningUnits::default();
    let bind = |group, ordinals: &[u32]| {
        RunChange::Bind(Bind {
            group,
            demand: Arc::new(demand()),
            pool: Pool::BestEffort,
            ordinals: ordinals.to_vec(),
            incarnations: Vec::new(),
            nodes: vec![NodeId(7); ordinals.len()],
            devices: vec![DeviceSet(5); ordinals.len()],
            zones: vec![ZoneSet(u64::from(group)).into(); ordinals.len()],
            standing: Some(Arc::new(godel_domain::running_units::PreemptionTerms {
                priority: -9,
                ..Default::default()
            })),
        })
    };
    let end = Statuses {
        ordinals: vec![1, 4],
        phases: vec![Phase::Failed, Phase::Running],
        exit_codes: vec![-3, 0],
        restarts: vec![2, 1],
        incarnations: Vec::new(),
        ends: vec![RunEnd { reason: Some(RunEndReason::Lost), started_ms: 5, ended_ms: 9 }; 2],
    };
    let evict = godel_domain::running_units::Evict {
        ordinals: vec![4],
        incarnations: Vec::new(),
        reason: EvictionReason::NodeLost,
        by: String::new(),
        preemptor: UnitId(0),
    };
    let requeue = Requeue { ordinals: vec![1], incarnations: vec![1], anew: false };
    let changes = [
        bind(2, &[0, 1, 9]),
        bind(0, &[4]),
        RunChange::Statuses(end),
        RunChange::Evict(evict),
        RunChange::Requeue(requeue),
    ];
    for (revision, change) in (3u64..).zip(changes) {
        rows.apply(&change, Revision(revision), 77, |_, _, _| {});
    }
    rows
}

#[test]
fn rows_come_back_from_their_encoding() {
    let rows = rows();
    let proto = rows_to_proto(UnitId(5), &rows);
    let decoded = v1::UnitRows::decode(&proto.encode_to_vec()[..]).unwrap();
    assert_eq!(rows_from_proto(decoded), Ok((UnitId(5), rows)));
}

#[test]
fn a_group_whose_rows_moved_keeps_its_demand() {
    let mut rows = rows();
    for row in rows.rows.values_mut().filter(|row| row.revision > Revision(0)) {
        row.group = 2;
    }
    assert_eq!(rows_from_proto(rows_to_proto(UnitId(1), &rows)), Ok((UnitId(1), rows)));
}

#[test]
fn bad_columns_are_named() {
    let binding = v1::Binding {
        unit_id: 1,
        demand: Some(to_proto::demand(&demand())),
        ordinals: vec![0, 1],
        node_ids: vec![1, 2],
        ..Default::default()
    };
    assert!(bind_from_proto(binding.clone().into()).is_ok());
    type Break = fn(&mut v1::Binding);
    let cases: [(&str, Break); 13] = [
        ("unit_id", |b| b.unit_id = 0),
        ("node_ids", |b| b.node_ids = vec![1]),
        ("incarnations", |b| b.incarnations = vec![1]),
        ("device_masks", |b| b.device_masks = vec![1, 2, 3]),
        ("zone_masks", |b| b.zone_masks = vec![1]),
        ("core_masks", |b| b.core_masks = vec![1]),
        ("task_group", |b| b.task_group = 1_024),
        ("pool", |b| b.pool = 9),
        ("demand.requests", |b| {
            b.demand = Some(v1::Demand {
                requests: Some(v1::Resources { amounts: [("cpu".to_owned(), -1)].into() }),
                devices: Vec::new(),
                host_ports: Vec::new(),
                zones: None,
            });
        }),
        ("demand.devices.count", |b| {
            b.demand = Some(v1::Demand {
                requests: None,
                devices: vec![v1::DeviceRequest::default()],
                host_ports: Vec::new(),
                zones: None,
            });
        }),
        ("demand.devices.milli_per_device", |b| {
            let devices = v1::DeviceRequest { count: 2, milli_per_device: Some(500), ..Default::default() };
            b.demand = Some(v1::Demand {
                requests: None,
                devices: vec![devices],
                host_ports: Vec::new(),
                zones: None,
            });
        }),
        ("demand.devices.kind", |b| {
            let devices = v1::DeviceRequest { count: 1, ..Default::default() };
            b.demand = Some(v1::Demand {
                requests: None,
                devices: vec![devices; 2],
                host_ports: Vec::new(),
                zones: None,
            });
        }),
        ("demand.devices", |b| {
            let devices = v1::DeviceRequest { count: 1, ..Default::default() };
            b.demand = Some(v1::Demand {
                requests: None,
                devices: vec![devices; 5],
                host_ports: Vec::new(),
                zones: None,
            });
        }),
    ];
    for (field, break_it) in cases {
        let mut bad = binding.clone();
        break_it(&mut bad);
        let error = bind_from_proto(bad.into()).unwrap_err();
        assert!(matches!(&error, OpError::Field { field: at, .. } if *at == field), "{field}: {error}");
    }
    let pending = v1::RunStatuses { unit_id: 1, ordinals: vec![0], phases: vec![0], ..Default::default() };
    assert!(statuses_from_proto(pending).is_err());
    let no_reason = v1::Eviction { unit_id: 1, ordinals: vec![0], ..Default::default() };
    assert!(evict_from_proto(no_reason).is_err());
}

#[test]
fn a_deletion_concerns_what_hangs_on_the_record() {
    let delete = |kind| ParsedOp::Delete { kind, key: Key::Id(1) }.kinds();
    let of_unit = [v1::Kind::Unit, v1::Kind::TaskGroup, v1::Kind::Rows].map(kind_bit);
    assert_eq!(delete(v1::Kind::Unit), of_unit.iter().sum::<u64>());
    assert_eq!(delete(v1::Kind::NodeSpec).count_ones(), 4);
    assert_eq!(delete(v1::Kind::NodeAllocatable), kind_bit(v1::Kind::NodeAllocatable));
}

/// Many rows of two groups, every column as wide as it gets, with holes.
fn wide_rows(n_rows: u32) -> RunningUnits {
    let mut rows = rows();
    let eviction = |ordinal| LastEviction {
        replica: ReplicaId::new(ordinal, u32::MAX),
        reason: EvictionReason::Tainted,
        by: "x".repeat(EVICTED_BY_LEN_MAX).into(),
        revision: Revision(u64::MAX),
    };
    rows.set_lineage(
        vec![UnitId(u64::MAX); N_PREEMPTORS_MAX],
        (0..n_rows.min(2_000)).map(eviction).collect(),
    );
    rows.rows = (0..n_rows)
        .map(|ordinal| match ordinal % 11 {
            5 => RunningUnit::default(),
            _ => RunningUnit {
                incarnation: u32::MAX,
                node: NodeId(u32::MAX),
                allocation: Allocation {
                    devices: DeviceSet(u64::MAX),
                    zones: GivenZones { zones: ZoneSet(u64::MAX), cores: CoreSet(u64::MAX) },
                },
                phase: Phase::Failed,
                eviction: Some(EvictionReason::NodeLost),
                group: if ordinal % 2 == 0 { 0 } else { 2 },
                exit_code: i32::MIN,
                restarts: u32::MAX,
                revision: Revision(u64::MAX),
                bound_time_ms: i64::MIN,
            },
        })
        .collect();
    let end = RunEnd { reason: Some(RunEndReason::CannotStart), started_ms: i64::MIN, ended_ms: i64::MIN };
    rows.ends = RunEnds::default();
    let used: Vec<u32> =
        rows.rows.iter().filter(|(_, row)| row.revision > Revision(0)).map(|(ordinal, _)| ordinal).collect();
    used.into_iter().for_each(|ordinal| rows.ends.set(ordinal, end));
    rows
}

#[test]
fn parts_of_rows_are_bounded_and_lose_nothing() {
    let far = N_ORDINALS_MAX - 1;
    let part_len = u32::try_from(N_ROWS_PER_RECORD).unwrap();
    for n_rows in [0, 1, part_len, part_len + 1, 2 * part_len, 100_000] {
        let rows = wide_rows(n_rows);
        let n_used = rows.rows.values().filter(|row| row.revision > Revision(0)).count();
        let n_parts = n_used.div_ceil(N_ROWS_PER_RECORD).max(1);
        let (mut joined, mut from, mut found) = (v1::UnitRows::default(), Some(0), 0);
        while let Some(start) = from {
            let (part, next) = rows_part_to_proto(UnitId(u64::MAX), &rows, start);
            assert!(part.encoded_len() <= 640 << 10, "{}", part.encoded_len());
            assert!(next.is_none_or(|next| next > start));
            (joined.unit_id, joined.preemptor_ids) = (part.unit_id, part.preemptor_ids);
            joined.evictions.extend(part.evictions);
            joined.blocks.extend(part.blocks);
            (from, found) = (next, found + 1);
        }
        assert_eq!(found, n_parts, "{n_rows}");
        assert_eq!(joined.evictions.len(), (n_rows as usize).min(N_EVICTIONS_MAX));
        assert_eq!(rows_from_proto(joined).unwrap(), (UnitId(u64::MAX), rows));
    }
    // One bound row far out does not make records of nothing.
    let mut sparse = RunningUnits::default();
    sparse.rows.grow(&[far]);
    *sparse.rows.get_mut(far).unwrap() = RunningUnit { revision: Revision(1), ..RunningUnit::default() };
    let (part, next) = rows_part_to_proto(UnitId(1), &sparse, 0);
    assert_eq!((&part.blocks[0].ordinals[..], next), (&[far][..], None));
    // Behind the end there is nothing.
    assert_eq!(
        rows_part_to_proto(UnitId(1), &sparse, far + 1),
        (v1::UnitRows { unit_id: 1, ..v1::UnitRows::default() }, None)
    );
}

#[test]
fn what_is_stored_of_100_000_past_ordinals_stays_small() {
    let mut rows = RunningUnits::default();
    let mut revision = 0;
    let mut apply = |rows: &mut RunningUnits, change: RunChange| {
        revision += 1;
        rows.check(&change).unwrap();
        rows.apply(&change, Revision(revision), 1_000, |_, _, _| {});
    };
    let bind = |ordinals: Vec<u32>| {
        let nodes = vec![NodeId(7); ordinals.len()];
        RunChange::Bind(Bind { ordinals, nodes, demand: Arc::new(demand()), ..Bind::default() })
    };
    apply(&mut rows, bind(vec![0]));
    for round in 0..100 {
        let ordinals: Vec<u32> = (round * 1_000 + 1..=(round + 1) * 1_000).collect();
        apply(&mut rows, bind(ordinals.clone()));
        let phases = vec![Phase::Succeeded; ordinals.len()];
        apply(
            &mut rows,
            RunChange::Statuses(Statuses { ordinals: ordinals.clone(), phases, ..Statuses::default() }),
        );
        apply(&mut rows, RunChange::Compact(Compaction { ordinals, ..Compaction::default() }));
    }
    apply(&mut rows, bind(vec![100_001]));
    assert_eq!((rows.rows.len(), rows.rows.end()), (2, 100_002));
    let stored = rows_to_proto(UnitId(1), &rows);
    assert!(stored.encoded_len() < 300, "{} bytes", stored.encoded_len());
    assert_eq!(rows_from_proto(stored).unwrap(), (UnitId(1), rows.clone()));
    let mut record = godel_testkit::unit("u");
    record.status.own_groups = 1;
    record.status.ordinals[0] = vec![(0, 1), (100_001, 100_002)];
    record.status.compacted = Some(Box::new(godel_domain::unit::CompactedRuns {
        replicas: 100_000,
        succeeded: 100_000,
        failed: 0,
        starts: 100_000,
        run_ms: 1 << 40,
        bound_ms: 1 << 40,
        used: [("cpu".to_owned(), 1 << 40), ("memory".to_owned(), 1 << 50)].into(),
    }));
    let status = crate::to_proto::unit_status(&record.status);
    assert!(status.encoded_len() < 100, "{} bytes", status.encoded_len());
}
