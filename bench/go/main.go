// RocketMQ's Go client for bench/client.py: a line "SECTION NAMESERVER TOPIC COUNT" in, a line of JSON out.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var body = make([]byte, 1024)
var sender rocketmq.Producer
var groups int

func cpu() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func figures(count int, took time.Duration, used time.Duration) string {
	return fmt.Sprintf("{\"rate\": %f, \"cpu_us\": %f}", float64(count)/took.Seconds(), float64(used.Nanoseconds())/1e3/float64(count))
}

func send(section string, topic string, count int) error {
	var failure atomic.Value
	workers, size := 4, 64
	if section != "batch" {
		workers, _ = strconv.Atoi(section[strings.Index(section, "-")+1:])
		size = 1
	}
	var left = int64(count)
	var group sync.WaitGroup
	for number := 0; number < workers; number++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for atomic.AddInt64(&left, -int64(size)) >= 0 {
				messages := make([]*primitive.Message, size)
				for each := range messages {
					messages[each] = primitive.NewMessage(topic, body)
				}
				if _, err := sender.SendSync(context.Background(), messages...); err != nil {
					failure.Store(err)
					return
				}
			}
		}()
	}
	group.Wait()
	if err := failure.Load(); err != nil {
		return err.(error)
	}
	return nil
}

func push(nameserver string, topic string, count int) (string, error) {
	groups++
	var seen int64
	var began time.Time
	var before time.Duration
	done := make(chan string, 1)
	member, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{nameserver}),
		consumer.WithGroupName(fmt.Sprintf("CG_bench_go_%d_%d", os.Getpid(), groups)),
		consumer.WithInstance(fmt.Sprintf("bench-%d-%d", os.Getpid(), groups)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return "", err
	}
	err = member.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		number := atomic.AddInt64(&seen, int64(len(messages)))
		if number == int64(len(messages)) {
			began, before = time.Now(), cpu()
		} else if number >= int64(count) {
			select {
			case done <- figures(count, time.Since(began), cpu()-before):
			default:
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	if err == nil {
		err = member.Start()
	}
	if err != nil {
		return "", err
	}
	text := <-done
	go member.Shutdown()
	return text, nil
}

func run(section string, nameserver string, topic string, count int) (string, error) {
	if section == "push" {
		return push(nameserver, topic, count)
	}
	if sender == nil {
		made, err := rocketmq.NewProducer(producer.WithNameServer([]string{nameserver}), producer.WithGroupName("PG_bench_go"),
			producer.WithSendMsgTimeout(30*time.Second))
		if err == nil {
			err = made.Start()
		}
		if err != nil {
			return "", err
		}
		sender = made
		if err = send("send-64", topic, 2000); err != nil {
			return "", err
		}
	}
	before, began := cpu(), time.Now()
	if err := send(section, topic, count); err != nil {
		return "", err
	}
	return figures(count, time.Since(began), cpu()-before), nil
}

func main() {
	rlog.SetLogLevel("error")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		count, _ := strconv.Atoi(words[3])
		text, err := run(words[0], words[1], words[2], count)
		if err != nil {
			text = "failed: " + err.Error()
		}
		fmt.Println(text)
	}
}
