// A consumer of go-nsq that prints body and attempts of each message: consumer ADDRESS TOPIC CHANNEL
package main

import (
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nsqio/go-nsq"
)

func main() {
	config := nsq.NewConfig()
	// The time between attempts to reconnect, too.
	config.LookupdPollInterval = 100 * time.Millisecond
	consumer, err := nsq.NewConsumer(os.Args[2], os.Args[3], config)
	if err != nil {
		log.Fatal(err)
	}
	consumer.AddHandler(nsq.HandlerFunc(func(message *nsq.Message) error {
		fmt.Printf("%s %d\n", message.Body, message.Attempts)
		return nil
	}))
	if err := consumer.ConnectToNSQD(os.Args[1]); err != nil {
		log.Fatal(err)
	}
	<-consumer.StopChan
}
