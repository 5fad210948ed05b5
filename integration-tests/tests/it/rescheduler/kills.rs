//! Movements go on after kill -9 of whoever makes them.

use super::*;
use crate::kills::AWAY;

#[tokio::test(flavor = "multi_thread")]
async fn movements_outlive_kills() {
    let mut cluster = start().await;
    a_movement_outlives_kills_of_the_rescheduler(&mut cluster).await;
    a_movement_outlives_kills_of_binder_and_schedulers(&mut cluster).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}

async fn a_movement_outlives_kills_of_the_rescheduler(cluster: &mut Cluster) {
    cluster.assert_quiet();
    cluster.announce(&["crash point"]);
    let points = [
        "rescheduler.before-commit",
        "rescheduler.after-commit",
        "rescheduler.before-move",
        "rescheduler.after-move",
        "rescheduler.after-commit:2",
        "rescheduler.before-commit:3",
    ];
    for (round, point) in points.into_iter().enumerate() {
        cluster.note(point);
        let unit = format!("u{round}");
        run_unit(cluster, &unit, N_REPLICAS).await;
        cluster.kill(NAME);
        cluster.restart_with(NAME, &[("GODEL_RESCHEDULER__CRASH_POINTS".to_owned(), point.to_owned())]);
        wait_leading(cluster).await;
        // It may die before it answers.
        let _ = run_pack(cluster).await;
        cluster.wait_ended(NAME).await;
        cluster.restart(NAME);
        wait_leading(cluster).await;
        // What was not recorded is not known: it is asked for again.
        wait_for("a movement or nothing to move", LIMIT, async || {
            let last = newest(cluster).await;
            if last.as_ref().is_ok_and(|last| last.phase() == v1::MovementPhase::Running) {
                anyhow::bail!("{last:?}");
            }
            if nodes_of(cluster, &unit).await.len() > 1 {
                run_pack(cluster).await?;
                anyhow::bail!("asked again");
            }
            Ok(())
        })
        .await;
        let last = newest(cluster).await.unwrap();
        assert_eq!(last.phase(), v1::MovementPhase::Done, "{point}: {last:?}");
        for row in rows(cluster, &unit).await.unwrap() {
            assert!(row.incarnation <= 1, "{point}: moved once at most: {row:?}");
        }
    }
    clear(cluster, &["u0", "u1", "u2", "u3", "u4", "u5"]).await;
}

async fn a_movement_outlives_kills_of_binder_and_schedulers(cluster: &mut Cluster) {
    cluster.assert_quiet();
    cluster.announce(AWAY);
    for (round, victims) in
        [vec!["binder-1"], vec!["scheduler-1"], vec!["binder-1", "scheduler-2", NAME]].into_iter().enumerate()
    {
        cluster.note(&format!("{victims:?}"));
        let unit = format!("v{round}");
        run_unit(cluster, &unit, N_REPLICAS).await;
        run_pack(cluster).await.unwrap();
        victims.iter().for_each(|name| cluster.kill(name));
        victims.iter().for_each(|name| cluster.restart(name));
        wait_leading(cluster).await;
        let ended = wait_ended(cluster).await;
        assert!(
            matches!(ended.phase(), v1::MovementPhase::Done | v1::MovementPhase::Stopped),
            "{victims:?}: {ended:?}"
        );
        wait_for("all replicas to run", LIMIT, async || {
            let rows = rows(cluster, &unit).await?;
            ensure!(rows.iter().all(|row| row.phase() == v1::RunPhase::Running), "{rows:?}");
            Ok(())
        })
        .await;
    }
}
