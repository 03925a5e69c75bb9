package main

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// transactional is a producer whose listener does what the property "plan" of each message says: the local result, then
// the answers to checks, the last of which is repeated.
type transactional struct {
	producer rocketmq.TransactionProducer
	mutex    sync.Mutex
	times    map[string]int
	checks   []map[string]any
}

var transactionals = map[string]*transactional{}

var states = map[string]primitive.LocalTransactionState{
	"commit":   primitive.CommitMessageState,
	"rollback": primitive.RollbackMessageState,
	"unknown":  primitive.UnknowState,
}

func planned(plan string, time int) string {
	steps := strings.Split(plan, ",")
	return steps[min(time, len(steps)-1)]
}

func (t *transactional) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return states[planned(m.GetProperty("plan"), 0)]
}

func (t *transactional) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	id := m.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex)
	t.times[id]++
	state := planned(m.GetProperty("plan"), t.times[id])
	t.checks = append(t.checks, map[string]any{
		"body": string(m.Body), "topic": m.Topic, "transactionId": id, "state": state,
		"queueOffset": m.QueueOffset, "logOffset": m.CommitLogOffset,
	})
	return states[state]
}

// runTransactions runs the commands about transactions.
func runTransactions(c *command) (any, error) {
	switch c.Op {
	case "transactions.start":
		t := &transactional{times: map[string]int{}}
		p, err := rocketmq.NewTransactionProducer(t,
			producer.WithNameServer(primitive.NamesrvAddr{c.NS}),
			producer.WithGroupName(c.Group),
			producer.WithInstanceName(c.Instance),
		)
		if err != nil {
			return nil, err
		}
		t.producer = p
		if err := p.Start(); err != nil {
			return nil, err
		}
		put(transactionals, c.Name, t)
		return nil, nil
	case "transactions.send":
		t := get(transactionals, c.Name)
		var results []any
		for _, m := range build(c.Messages) {
			r, err := t.producer.SendMessageInTransaction(context.Background(), m)
			if err != nil {
				return nil, err
			}
			results = append(results, result(r.SendResult))
		}
		return results, nil
	case "transactions.checks":
		t := get(transactionals, c.Name)
		t.mutex.Lock()
		defer t.mutex.Unlock()
		return append([]map[string]any{}, t.checks...), nil
	case "transactions.stop":
		t := take(transactionals, c.Name)
		if t == nil {
			return nil, nil
		}
		return nil, t.producer.Shutdown()
	}
	return nil, fmt.Errorf("unknown op %s", c.Op)
}
