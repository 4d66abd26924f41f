// Push consumers by handle, each noting what it got, failed deliveries too; and one pull of a queue.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

type message struct {
	ID         string            `json:"id"`
	Topic      string            `json:"topic"`
	Broker     string            `json:"broker"`
	Queue      int               `json:"queue"`
	Offset     int64             `json:"offset"`
	Tag        string            `json:"tag"`
	Keys       string            `json:"keys"`
	Reconsumed int32             `json:"reconsumed"`
	Born       int64             `json:"born"`
	Stored     int64             `json:"stored"`
	Seen       int64             `json:"seen"`
	Properties map[string]string `json:"properties"`
	Body       string            `json:"body"`
}

func seen(m *primitive.MessageExt) message {
	return message{m.MsgId, m.Topic, m.Queue.BrokerName, m.Queue.QueueId, m.QueueOffset, m.GetTags(), m.GetKeys(),
		m.ReconsumeTimes, m.BornTimestamp, m.StoreTimestamp, time.Now().UnixMilli(), m.GetProperties(), string(m.Body)}
}

type pushConsumer struct {
	client     rocketmq.PushConsumer
	guard      sync.Mutex
	seen       []message
	deliveries map[string]int
	failures   int
}

var pushConsumers = map[string]*pushConsumer{}

func (p *pushConsumer) listen(arrived []*primitive.MessageExt) bool {
	good := true
	for _, m := range arrived {
		p.guard.Lock()
		p.seen = append(p.seen, seen(m))
		p.deliveries[string(m.Body)]++
		good = good && p.deliveries[string(m.Body)] > p.failures
		p.guard.Unlock()
	}
	return good
}

func push(o options) (answer, error) {
	one := &pushConsumer{deliveries: map[string]int{}, failures: o.number("fail", 0)}
	instance := o.text("instance", fmt.Sprintf("go-push-%d-%d", os.Getpid(), len(pushConsumers)))
	where := consumer.ConsumeFromFirstOffset
	if o["from"] == "last" {
		where = consumer.ConsumeFromLastOffset
	}
	model := consumer.Clustering
	if o.flag("broadcast") {
		model = consumer.BroadCasting
	}
	chosen := []consumer.Option{
		consumer.WithNameServer(addresses(o["ns"])),
		consumer.WithGroupName(o["group"]),
		consumer.WithInstance(instance),
		consumer.WithConsumeFromWhere(where),
		consumer.WithConsumerModel(model),
		consumer.WithConsumerOrder(o.flag("orderly")),
		consumer.WithRebalanceLockInterval(time.Second),
		consumer.WithSuspendCurrentQueueTimeMillis(time.Duration(o.number("suspend", 200)) * time.Millisecond),
	}
	if times := o.number("max", -1); times >= 0 {
		chosen = append(chosen, consumer.WithMaxReconsumeTimes(int32(times)))
	}
	var err error
	if one.client, err = rocketmq.NewPushConsumer(chosen...); err != nil {
		return answer{}, err
	}
	bad := consumer.ConsumeRetryLater
	if o.flag("orderly") {
		bad = consumer.SuspendCurrentQueueAMoment
	}
	listen := func(_ context.Context, arrived ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if !one.listen(arrived) {
			return bad, nil
		}
		return consumer.ConsumeSuccess, nil
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: o.text("expression", "*")}
	if err := one.client.Subscribe(o["topic"], selector, listen); err != nil {
		return answer{}, err
	}
	if err := one.client.Start(); err != nil {
		return answer{}, err
	}
	pushConsumers[o["handle"]] = one
	return answer{Client: instance}, nil
}

func consumed(o options) (answer, error) {
	one, found := pushConsumers[o["handle"]]
	if !found {
		return answer{}, fmt.Errorf("no such consumer: %s", o["handle"])
	}
	deadline := time.Now().Add(time.Duration(o.number("seconds", 30)) * time.Second)
	for {
		one.guard.Lock()
		all := append([]message{}, one.seen...)
		one.guard.Unlock()
		if len(all) >= o.number("count", 0) || time.Now().After(deadline) {
			return answer{Messages: all}, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func stop(o options) (answer, error) {
	one, found := pushConsumers[o["handle"]]
	if !found {
		return answer{}, fmt.Errorf("no such consumer: %s", o["handle"])
	}
	delete(pushConsumers, o["handle"])
	return answer{}, one.client.Shutdown()
}

// One pull of a queue, by a consumer of its own.
func pull(o options) (answer, error) {
	instance := fmt.Sprintf("go-pull-%d-%d", os.Getpid(), time.Now().UnixNano())
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(addresses(o["ns"])),
		consumer.WithGroupName(o["group"]),
		consumer.WithInstance(instance),
	)
	if err != nil {
		return answer{}, err
	}
	if err := c.Subscribe(o["topic"], consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}); err != nil {
		return answer{}, err
	}
	if err := c.Start(); err != nil {
		return answer{}, err
	}
	defer c.Shutdown()
	queue := &primitive.MessageQueue{Topic: o["topic"], BrokerName: o["broker"], QueueId: o.number("queue", 0)}
	found, err := c.PullFrom(context.Background(), queue, int64(o.number("offset", 0)), o.number("max", 32))
	if err != nil {
		return answer{}, err
	}
	all := []message{}
	for _, each := range found.GetMessageExts() {
		if each.Queue == nil {
			each.Queue = queue
		}
		all = append(all, seen(each))
	}
	statuses := map[primitive.PullStatus]string{
		primitive.PullFound: "FOUND", primitive.PullNoNewMsg: "NO_NEW_MSG",
		primitive.PullNoMsgMatched: "NO_MATCHED_MSG", primitive.PullOffsetIllegal: "OFFSET_ILLEGAL",
	}
	return answer{Messages: all, Status: statuses[found.Status], Next: found.NextBeginOffset}, nil
}
