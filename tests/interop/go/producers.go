// Sending, in the forms that this client has. A producer lives as long as the program, one for each NAMESRV and group.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// What a producer was told about one message.
type result struct {
	ID       string `json:"id,omitempty"`
	OffsetID string `json:"offset_id,omitempty"`
	Broker   string `json:"broker,omitempty"`
	Queue    int    `json:"queue"`
	Offset   int64  `json:"offset"`
	Status   string `json:"status,omitempty"`
	Body     string `json:"body"`
	Error    string `json:"error,omitempty"`
}

// The queue of the message's property, a hash of its sharding key, or one after the other.
type chosenQueue struct{ others producer.QueueSelector }

func (c chosenQueue) Select(m *primitive.Message, all []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	if m.Queue != nil {
		for _, each := range all {
			if each.QueueId == m.Queue.QueueId {
				return each
			}
		}
	}
	return c.others.Select(m, all, last)
}

var senders = map[string]rocketmq.Producer{}

func sender(o options, group string) (rocketmq.Producer, error) {
	key := o["ns"] + " " + group
	if known, found := senders[key]; found {
		return known, nil
	}
	made, err := rocketmq.NewProducer(
		producer.WithNameServer(addresses(o["ns"])),
		producer.WithGroupName(group),
		producer.WithInstanceName(fmt.Sprintf("go-sender-%d-%d", os.Getpid(), len(senders))),
		producer.WithSendMsgTimeout(10*time.Second),
		producer.WithRetry(2),
		producer.WithQueueSelector(chosenQueue{producer.NewHashQueueSelector()}),
	)
	if err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	senders[key] = made
	return made, nil
}

func messages(o options) []*primitive.Message {
	made := []*primitive.Message{}
	for i := 0; i < o.number("count", 1); i++ {
		body := fmt.Sprintf("%s-%d", o.text("prefix", "m"), i)
		if missing := o.number("size", 0) - len(body); missing > 0 {
			body += strings.Repeat(".", missing)
		}
		message := primitive.NewMessage(o["topic"], []byte(body))
		if tag := o["tag"]; tag != "" {
			message.WithTag(tag)
		}
		if keys := o["keys"]; keys != "" {
			message.WithKeys(strings.Fields(keys))
		}
		for _, pair := range strings.Split(o["props"], ",") {
			if key, value, split := strings.Cut(pair, ":"); split {
				message.WithProperty(key, value)
			}
		}
		if level := o.number("delay", 0); level > 0 {
			message.WithDelayTimeLevel(level)
		}
		if shard := o["shard"]; shard != "" {
			message.WithShardingKey(shard)
		}
		if queue := o.number("queue", -1); queue >= 0 {
			message.Queue = &primitive.MessageQueue{Topic: o["topic"], QueueId: queue}
		}
		made = append(made, message)
	}
	return made
}

func told(done *primitive.SendResult, body string) result {
	status := "SEND_OK"
	if done.Status != primitive.SendOK {
		status = fmt.Sprintf("STATUS_%d", done.Status)
	}
	at := done.MessageQueue
	return result{done.MsgID, done.OffsetMsgID, at.BrokerName, at.QueueId, done.QueueOffset, status, body, ""}
}

func send(o options) (answer, error) {
	p, err := sender(o, o.text("group", "go_driver_producer"))
	if err != nil {
		return answer{}, err
	}
	all := messages(o)
	switch o.text("mode", "sync") {
	case "async":
		return sendAsync(p, all)
	case "oneway":
		return answer{}, p.SendOneWay(context.Background(), all...)
	case "batch":
		done, err := p.SendSync(context.Background(), all...)
		if err != nil {
			return answer{}, err
		}
		return answer{Sent: []result{told(done, "")}}, nil
	default:
		return sendSync(p, all, o)
	}
}

func sendSync(p rocketmq.Producer, all []*primitive.Message, o options) (answer, error) {
	results := []result{}
	for _, each := range all {
		body := string(each.Body)
		done, err := p.SendSync(context.Background(), each)
		switch {
		case err == nil:
			results = append(results, told(done, body))
		case o.flag("tolerant"):
			results = append(results, result{Body: body, Error: err.Error()})
		default:
			return answer{}, err
		}
		time.Sleep(time.Duration(o.number("pause", 0)) * time.Millisecond)
	}
	return answer{Sent: results}, nil
}

func sendAsync(p rocketmq.Producer, all []*primitive.Message) (answer, error) {
	results := make([]result, len(all))
	var open sync.WaitGroup
	for i, each := range all {
		i, body := i, string(each.Body)
		open.Add(1)
		err := p.SendAsync(context.Background(), func(_ context.Context, done *primitive.SendResult, err error) {
			if err != nil {
				results[i] = result{Body: body, Error: err.Error()}
			} else {
				results[i] = told(done, body)
			}
			open.Done()
		}, each)
		if err != nil {
			return answer{}, err
		}
	}
	open.Wait()
	return answer{Sent: results}, nil
}
