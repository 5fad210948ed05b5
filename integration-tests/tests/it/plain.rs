//! Plain control planes, each with check after check of what other files say. A check leaves its units where they are, and nothing
//! else: it counts from what there was before it, and starts again whom it ended.

use godel_integration_tests::cluster::{Cluster, Layout};

use super::{bad_input, front_door, overload, queues, reflection, telemetry, trace, verbs};
use crate::kills::AWAY;

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_answered_by_a_control_plane_that_nothing_happens_to() {
    let mut cluster = Cluster::start(Layout { is_plain: true, ..Layout::default() }).await;
    cluster.note("the trace in small");
    trace::the_trace_in_small_is_placed_completely(&cluster).await;
    cluster.note("the address of state alone");
    front_door::clients_need_the_address_of_state_alone(&cluster).await;
    front_door::the_command_line_speaks_to_state_alone(&cluster).await;
    cluster.note("reflection");
    reflection::a_client_with_reflection_alone_submits_and_watches_a_unit(&cluster).await;
    cluster.assert_quiet();
    cluster.note("those who do not read");
    front_door::those_who_do_not_read_hold_up_nobody(&cluster).await;
    cluster.note("bad input");
    bad_input::bad_input_is_refused_clearly_and_harms_nothing(&mut cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_answered_by_a_control_plane_whose_members_die() {
    let mut cluster =
        Cluster::start(Layout { is_plain: true, env: telemetry::json_logs(), ..Layout::default() }).await;
    cluster.announce(AWAY);
    cluster.note("a watch and a wait");
    verbs::a_watch_and_a_wait_outlive_the_leader_they_began_with(&mut cluster).await;
    cluster.note("a leader that dies");
    front_door::a_leader_that_dies_is_followed_through_state(&mut cluster).await;
    cluster.note("services that can work");
    front_door::services_say_whether_they_can_work(&mut cluster).await;
    cluster.note("limits of what is forwarded");
    front_door::forwarded_calls_end_at_their_limits(&mut cluster).await;
    cluster.note("calls beyond the limit");
    overload::calls_beyond_the_limit_are_refused_and_none_is_lost(&mut cluster).await;
    cluster.note("names in metrics and logs");
    telemetry::metrics_and_json_logs_have_their_documented_names(&mut cluster).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
    cluster.note("a binding above a maximum");
    queues::the_audit_finds_a_binding_above_a_maximum(&mut cluster).await;
}
