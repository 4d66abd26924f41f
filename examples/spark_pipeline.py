"""A pipeline in cells, as in a notebook: orders to a lake, a report by SQL, an audit, and the orders once more.

    python examples/spark_pipeline.py

Needs a broker (`./scripts/run`) and `pip install "cometmq[spark]"`. `NAMESRV_ADDR` names the nameservers. The cells
(`# %%`) run one by one in editors that know them.
"""

# %% Where things are
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import cometmq.sync
from cometmq.client.audit import SendAudit
from cometmq.spark import jobs, session

nameserver = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
lake = Path(tempfile.mkdtemp(prefix="lake-"))
spark = session("pipeline")

# %% Two queues for the orders, and for whoever gets them again: mqadmin updateTopic
for topic in ("shop-orders", "shop-orders-again"):
    make = ["updateTopic", "-n", nameserver, "-c", "DefaultCluster", "-t", topic, "-r", "2", "-w", "2"]
    subprocess.run([sys.executable, "-m", "cometmq.admin", *make], check=True, stdout=subprocess.DEVNULL)

# %% Some orders, numbered by their producer so that a loss would be seen
with cometmq.sync.connect(nameserver) as mq, mq.producer("shop", hooks=[SendAudit()]) as producer:
    for number in range(200):
        order = f'{{"id": "o-{number}", "customer": "c-{number % 7}", "cents": {number * 10}}}'
        producer.send("shop-orders", order.encode(), keys=f"o-{number}", sharding_key=f"c-{number % 7}")

# %% Into the lake, exactly once; the next run goes on where this one ended
archived = jobs.archive(spark, "shop-orders", str(lake / "archive"), name_server=nameserver)
print(f"archived {archived.rows} orders")

# %% Any reader of Parquet can have them
orders = jobs.read_archive(spark, str(lake / "archive"))
orders.createOrReplaceTempView("archived")
best = spark.sql("""
    select o.customer, sum(o.cents) as cents
    from (select from_json(cast(body as string), 'id string, customer string, cents long') as o from archived)
    group by o.customer order by cents desc limit 3
""").collect()
print("best customers:", [(row.customer, row.cents) for row in best])

# %% Big ones to a topic of their own, as they come
big = jobs.etl(
    spark,
    "shop-orders",
    sql="select keys, body from messages where json.cents >= 1500",
    json_schema="id string, cents long",
    to_topic="shop-big-orders",
    name_server=nameserver,
    checkpoint=str(lake / "big.checkpoint"),
)
sent = spark.read.format("rocketmq").options(nameServer=nameserver, subscribe="shop-big-orders").load()
print(f"{big.rows} orders looked at, {sent.count()} big ones sent on")

# %% Was anything lost, repeated or out of order?
report = jobs.audit(spark, archive=str(lake / "archive"), from_the_first=True)
print("audit:", {name: report.details[name] for name in ("lost", "repeats", "disorders")})

# %% All of them once more, in their order, for whoever missed them
again = jobs.replay(spark, "shop-orders-again", archive=str(lake / "archive"), name_server=nameserver)
print(f"replayed {again.rows} orders")
