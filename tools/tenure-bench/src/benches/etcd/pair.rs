//! An uncontended lock and its release, one task: Tenure beside the least that holds a lock in
//! etcd, a transaction that creates a key and a call that deletes it.

use servers::Etcd;
use tenure::engine::etcd::client::{
    Client, ClientOptions, Compare, CompareResult, RequestOp, Target, TxnRequest,
};
use tenure::{Error, Tenure};

use crate::benches::lane::{LanePlan, beside, figure};
use crate::benches::redis::takers::{LEASE, failed};
use crate::benches::taker::Taker;
use crate::figure::{Aim, Figure};
use crate::run::Run;

pub(crate) fn measure(run: &Run, etcd: &Etcd) -> Result<Vec<Figure>, Error> {
    // Blocks are so short that both meet the same moments of the machine and of its disk.
    let plan = LanePlan { warm_up: 3, blocks: run.count(3, 300), pairs: 10 };
    let ours = run.here(Tenure::connect(&etcd.url()))?.mutex("tenure")?;
    let by_hand = run.here(ByHand::connect(etcd))?;
    let [ours, hand] = beside(run, plan, ours, by_hand)?;
    let figure = figure("pair", "x written by hand", &ours, &hand);
    Ok(vec![figure.judged_by(Aim::AtMost(1.12))])
}

/// A key that is created only if it is not there, on a lease, and deleted: no fence, no line, and a
/// lease that nobody keeps alive.
struct ByHand {
    client: Client,
    lease: i64,
}

impl ByHand {
    async fn connect(etcd: &Etcd) -> Result<Self, Error> {
        let endpoint = format!("http://127.0.0.1:{}", etcd.port(0));
        let target = Target::new(&endpoint, &ClientOptions::default()).map_err(failed)?;
        let client = Client::new(&target);
        // Longer than any run: its end is not what is measured.
        let seconds = i64::try_from(LEASE.as_secs()).unwrap_or(i64::MAX).saturating_mul(100);
        let lease = client.lease_grant(seconds).await.map_err(failed)?.id;
        Ok(Self { client, lease })
    }
}

impl Taker for ByHand {
    type Held = ();

    async fn take(&mut self) -> Result<(), Error> {
        let absent = Compare::create_revision("by-hand", CompareResult::Equal, 0);
        let put = RequestOp::put("by-hand", "", self.lease);
        let txn = TxnRequest { compare: vec![absent], success: vec![put], failure: Vec::new() };
        let answer = self.client.txn(txn).await.map_err(failed)?;
        if answer.succeeded { Ok(()) } else { Err(failed("a free key was not created")) }
    }

    async fn give(&mut self, (): ()) -> Result<(), Error> {
        let answer = self.client.delete(b"by-hand").await.map_err(failed)?;
        if answer.deleted == 1 { Ok(()) } else { Err(failed("a key of ours was not deleted")) }
    }
}
