// Options of a command: key=value, values percent encoded; and the table of commands that take them.
package main

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

type options map[string]string

var verbs map[string]func(options) (answer, error)

func init() {
	verbs = map[string]func(options) (answer, error){
		"send":     send,
		"push":     push,
		"consumed": consumed,
		"stop":     stop,
		"pull":     pull,
	}
}

func parse(words []string) (options, error) {
	found := options{}
	for _, word := range words {
		key, value, split := strings.Cut(word, "=")
		if !split {
			return nil, fmt.Errorf("not key=value: %s", word)
		}
		text, err := url.PathUnescape(value)
		if err != nil {
			return nil, err
		}
		found[key] = text
	}
	return found, nil
}

func (o options) text(key, otherwise string) string {
	if value, found := o[key]; found {
		return value
	}
	return otherwise
}

func (o options) number(key string, otherwise int) int {
	if value, err := strconv.Atoi(o[key]); err == nil {
		return value
	}
	return otherwise
}

func (o options) flag(key string) bool {
	return o[key] == "true"
}
