package consensus

import (
	"context"
	"sync"

	"github.com/clatter-go/clatter/transport"
)

const methodLeader = "consensus/leader"

// answerLeader tells which leader this node has heard of.
func (e *Engine) answerLeader(context.Context, transport.Peer, []byte) ([]byte, error) {
	term, leader, _ := e.client.compass.read()
	return appendMoved(nil, term, leader), nil
}

// askWhoLeads asks the voters but one. Answers go to the compass.
func (e *Engine) askWhoLeads(ctx context.Context, except string) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, name := range e.voterNames() {
		if name == except || name == e.cfg.Name {
			continue
		}
		wg.Go(func() {
			b, err := e.cfg.Transport.Call(ctx, name, methodLeader, nil)
			p := parser{b: b}
			if term, leader := p.moved(); err == nil && p.err() == nil {
				e.client.compass.learn(term, leader)
			}
		})
	}
}

// learnFromGossip takes the newest leader that gossip tells of.
func (e *Engine) learnFromGossip() {
	for _, p := range e.cfg.Roster.Peers() {
		if p.Leader && !p.Dead {
			e.client.compass.learn(p.Term, p.Name)
		}
	}
}
