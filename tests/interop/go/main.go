// Drives RocketMQ's Go client from a test: a command a line on stdin, a line of JSON on stdout for each.
// The commands and answers are those of the Java driver beside it; what this client cannot do is no command.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type place struct {
	Broker string `json:"broker"`
	Queue  int    `json:"queue"`
}

type sent struct {
	place
	ID     string `json:"id"`
	Offset int64  `json:"offset"`
	Status string `json:"status"`
}

type received struct {
	place
	ID     string `json:"id"`
	Offset int64  `json:"offset"`
	Tag    string `json:"tag"`
	Body   string `json:"body"`
}

type answer struct {
	OK       bool    `json:"ok"`
	Error    string  `json:"error,omitempty"`
	Sent     any     `json:"sent,omitempty"`
	Messages any     `json:"messages,omitempty"`
	Queues   []place `json:"queues,omitempty"`
	Client   string  `json:"client,omitempty"`
	Status   string  `json:"status,omitempty"`
	Next     int64   `json:"next,omitempty"`
}

// A producer lives as long as the program, one for each list of nameservers.
var producers = map[string]rocketmq.Producer{}
var consumers = 0

func main() {
	rlog.SetLogLevel("warn")
	answers := json.NewEncoder(os.Stdout)
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		result, err := run(strings.Fields(commands.Text()))
		result.OK = err == nil
		if err != nil {
			result = answer{Error: err.Error()}
		}
		if err := answers.Encode(result); err != nil {
			os.Exit(1)
		}
	}
}

func run(words []string) (answer, error) {
	wanted := map[string]int{"produce": 5, "consume": 6, "route": 3}
	if len(words) == 0 {
		return answer{}, fmt.Errorf("an empty command")
	}
	if verb, known := verbs[words[0]]; known {
		options, err := parse(words[1:])
		if err != nil {
			return answer{}, err
		}
		return verb(options)
	}
	if wanted[words[0]] != len(words) {
		return answer{}, fmt.Errorf("no such command: %v", words)
	}
	switch words[0] {
	case "produce":
		count, err := strconv.Atoi(words[3])
		if err != nil {
			return answer{}, err
		}
		return produce(words[1], words[2], count, words[4])
	case "consume":
		count, err := strconv.Atoi(words[4])
		if err != nil {
			return answer{}, err
		}
		seconds, err := strconv.Atoi(words[5])
		if err != nil {
			return answer{}, err
		}
		return consume(words[1], words[2], words[3], count, time.Duration(seconds)*time.Second)
	default:
		return route(words[1], words[2])
	}
}

func addresses(nameservers string) primitive.NamesrvAddr {
	return strings.Split(nameservers, ";")
}

func produce(nameservers, topic string, count int, tag string) (answer, error) {
	p, known := producers[nameservers]
	if !known {
		var err error
		p, err = rocketmq.NewProducer(
			producer.WithNameServer(addresses(nameservers)),
			producer.WithGroupName(fmt.Sprintf("go_producer_%d", len(producers))),
			// Clients of one instance name share their connections, and with them their nameservers.
			producer.WithInstanceName(fmt.Sprintf("go-producer-%d-%d", os.Getpid(), len(producers))),
			producer.WithSendMsgTimeout(10*time.Second),
			producer.WithRetry(2),
		)
		if err != nil {
			return answer{}, err
		}
		if err := p.Start(); err != nil {
			return answer{}, err
		}
		producers[nameservers] = p
	}
	all := []sent{}
	for i := 0; i < count; i++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("%s-%d", tag, i))).WithTag(tag)
		done, err := p.SendSync(context.Background(), message)
		if err != nil {
			return answer{}, err
		}
		status := "SEND_OK"
		if done.Status != primitive.SendOK {
			status = fmt.Sprintf("STATUS_%d", done.Status)
		}
		at := place{done.MessageQueue.BrokerName, done.MessageQueue.QueueId}
		all = append(all, sent{at, done.MsgID, done.QueueOffset, status})
	}
	return answer{Sent: all}, nil
}

func consume(nameservers, group, topic string, count int, timeout time.Duration) (answer, error) {
	consumers++
	arrived := make(chan received, 10*count+100)
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(addresses(nameservers)),
		consumer.WithGroupName(group),
		consumer.WithInstance(fmt.Sprintf("go-consumer-%d-%d", os.Getpid(), consumers)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return answer{}, err
	}
	listen := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			at := place{m.Queue.BrokerName, m.Queue.QueueId}
			arrived <- received{at, m.MsgId, m.QueueOffset, m.GetTags(), string(m.Body)}
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := c.Subscribe(topic, consumer.MessageSelector{}, listen); err != nil {
		return answer{}, err
	}
	if err := c.Start(); err != nil {
		return answer{}, err
	}
	deadline := time.After(timeout)
	all := []received{}
	for waiting := true; waiting && len(all) < count; {
		select {
		case message := <-arrived:
			all = append(all, message)
		case <-deadline:
			waiting = false
		}
	}
	return answer{Messages: all}, c.Shutdown()
}

func route(nameservers, topic string) (answer, error) {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(addresses(nameservers))))
	if err != nil {
		return answer{}, err
	}
	defer a.Close()
	queues, err := a.FetchPublishMessageQueues(context.Background(), topic)
	if err != nil {
		return answer{}, err
	}
	result := answer{}
	for _, queue := range queues {
		result.Queues = append(result.Queues, place{queue.BrokerName, queue.QueueId})
	}
	return result, nil
}
