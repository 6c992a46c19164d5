// A link to a distant server: a TCP proxy that delays each byte and limits the bytes of a second.
//
//	link LISTEN TARGET COUNTS DELAY_MS BYTES_A_SECOND
//
// All connections share one bandwidth in each direction. A byte arrives DELAY_MS after its turn on the link, and a new
// connection waits for its handshake, 2 x DELAY_MS. So a request takes 2 x DELAY_MS, and twice that on a new connection.
// On COUNTS, GET / answers with bytes, connections and requests since the last GET /reset, as JSON.
package main

import (
	"bytes"
	"encoding/json"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	chunkBytes = 32 << 10
	maxChunks  = 1024
	// A sender may be ahead of the link by this time; the rest waits in the sender.
	maxAhead = 20 * time.Millisecond
)

var (
	delay       time.Duration // each way
	rate        float64       // bytes a second
	up, down    direction
	connections atomic.Int64
	requests    sync.Map // method -> *atomic.Int64
)

// A direction of the link computes when each chunk has passed it.
type direction struct {
	mutex sync.Mutex
	free  time.Time
	bytes atomic.Int64
}

func (d *direction) pass(length int) time.Time {
	d.bytes.Add(int64(length))
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if now := time.Now(); d.free.Before(now) {
		d.free = now
	}
	d.free = d.free.Add(time.Duration(float64(length) / rate * float64(time.Second)))
	return d.free
}

type chunk struct {
	data    []byte
	arrives time.Time
}

// pump moves bytes in one direction until either end closes its connection.
func pump(from, to net.Conn, way *direction, observe func([]byte), done func()) {
	queue := make(chan chunk, maxChunks)
	go func() {
		defer close(queue)
		for {
			buffer := make([]byte, chunkBytes)
			length, err := from.Read(buffer)
			if length > 0 {
				observe(buffer[:length])
				passed := way.pass(length)
				if ahead := time.Until(passed); ahead > maxAhead {
					time.Sleep(ahead - maxAhead/2)
				}
				queue <- chunk{buffer[:length], passed.Add(delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for next := range queue {
		time.Sleep(time.Until(next.arrives))
		if _, err := to.Write(next.data); err != nil {
			break
		}
	}
	done()
	for range queue { // so that the reader ends
	}
}

// requestCounter counts the requests in the bytes of a client: heads, and bodies by their length.
func requestCounter() func([]byte) {
	var head []byte
	body := int64(0)
	return func(data []byte) {
		for len(data) > 0 {
			if body > 0 {
				skipped := min(body, int64(len(data)))
				body -= skipped
				data = data[skipped:]
				continue
			}
			head = append(head, data...)
			end := bytes.Index(head, []byte("\r\n\r\n"))
			if end < 0 {
				return
			}
			data = bytes.Clone(head[end+4:])
			lines := strings.Split(string(head[:end]), "\r\n")
			head = nil
			method, _, _ := strings.Cut(lines[0], " ")
			for _, line := range lines[1:] {
				name, value, _ := strings.Cut(line, ":")
				if strings.EqualFold(name, "content-length") {
					body, _ = strconv.ParseInt(strings.TrimSpace(value), 10, 64)
				}
			}
			count, _ := requests.LoadOrStore(method, new(atomic.Int64))
			count.(*atomic.Int64).Add(1)
		}
	}
}

func serve(client net.Conn, target string) {
	connections.Add(1)
	time.Sleep(2 * delay)
	server, err := net.Dial("tcp", target)
	if err != nil {
		client.Close()
		return
	}
	closeBoth := func() { client.Close(); server.Close() }
	go pump(client, server, &up, requestCounter(), closeBoth)
	pump(server, client, &down, func([]byte) {}, closeBoth)
}

func answerCounts(w http.ResponseWriter, _ *http.Request) {
	counts := map[string]int64{
		"up": up.bytes.Load(), "down": down.bytes.Load(), "connections": connections.Load(),
	}
	requests.Range(func(method, count any) bool {
		counts[method.(string)] = count.(*atomic.Int64).Load()
		return true
	})
	json.NewEncoder(w).Encode(counts)
}

func resetCounts(http.ResponseWriter, *http.Request) {
	up.bytes.Store(0)
	down.bytes.Store(0)
	connections.Store(0)
	requests.Clear()
}

func main() {
	delayMs, err := strconv.ParseFloat(os.Args[4], 64)
	if err != nil {
		log.Fatal(err)
	}
	delay = time.Duration(delayMs * float64(time.Millisecond))
	if rate, err = strconv.ParseFloat(os.Args[5], 64); err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/", answerCounts)
	http.HandleFunc("/reset", resetCounts)
	go func() { log.Fatal(http.ListenAndServe(os.Args[3], nil)) }()
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go serve(client, os.Args[2])
	}
}
