// Sends a message to CometMQ and receives it. The client is RocketMQ's own, unchanged.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	rlog.SetLogLevel("error")
	nameserver := os.Getenv("NAMESRV_ADDR")
	if nameserver == "" {
		nameserver = "127.0.0.1:9876"
	}

	p, err := rocketmq.NewProducer(producer.WithNsResolver(primitive.NewPassthroughResolver([]string{nameserver})))
	must(err)
	must(p.Start())
	sent, err := p.SendSync(context.Background(), primitive.NewMessage("Greetings", []byte("hello from Go")))
	must(err)
	fmt.Println("sent", sent.MsgID)

	c, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{nameserver})),
		consumer.WithGroupName("first-go"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	must(err)
	got := make(chan string, 1)
	must(c.Subscribe("Greetings", consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			select {
			case got <- fmt.Sprintf("received %s: %s", m.MsgId, m.Body):
			default:
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	fmt.Println(<-got)
	must(c.Shutdown())
	must(p.Shutdown())
}
