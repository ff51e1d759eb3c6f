package rendezvous

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// start serves for one test, and says where.
func start(t *testing.T, scopes map[string]int) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, scopes) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// ask speaks as Horovod's client does: by hand, with a connection for each request.
func ask(address, method, path string, body []byte) (int, []byte, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return 0, nil, err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: rank-0\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body); err != nil {
		return 0, nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	value, err := io.ReadAll(answer.Body)
	if answer.ContentLength < 0 && err == nil {
		err = errors.New("the answer doesn't say how long it is")
	}
	return answer.StatusCode, value, err
}

// meet is one rank in one scope: it writes its own key, waits for everybody's, reads
// them, and says that it has finished.
func meet(address, scope string, rank, size int, word string) error {
	if code, _, err := ask(address, "PUT", fmt.Sprintf("/%s/%d", scope, rank), fmt.Appendf(nil, "%s %d", word, rank)); code != 200 || err != nil {
		return fmt.Errorf("rank %d writes: %d %w", rank, code, err)
	}
	for other := range size {
		for {
			code, value, err := ask(address, "GET", fmt.Sprintf("/%s/%d", scope, other), nil)
			if err != nil || code != 200 && code != 404 {
				return fmt.Errorf("rank %d reads %d: %d %w", rank, other, code, err)
			}
			if code == 404 {
				continue
			}
			if want := fmt.Sprintf("%s %d", word, other); string(value) != want {
				return fmt.Errorf("rank %d reads %q of %d, and not %q", rank, value, other, want)
			}
			break
		}
	}
	code, _, err := ask(address, "DELETE", fmt.Sprintf("/%s/%d", scope, rank), nil)
	if code != 200 {
		err = fmt.Errorf("rank %d finishes: %d %w", rank, code, err)
	}
	return err
}

func TestRanksMeet(t *testing.T) {
	const size = 6
	address := start(t, map[string]int{"global": size, "local_rank-0": size, "cross_0": 1})
	for _, round := range []string{"first", "second"} {
		var all sync.WaitGroup
		for rank := range size {
			all.Go(func() {
				for _, scope := range []string{"global", "local_rank-0"} {
					if err := meet(address, scope, rank, size, round); err != nil {
						t.Error(round, scope, err)
					}
				}
			})
		}
		all.Wait()
		if code, _, err := ask(address, "GET", "/global/0", nil); code != 404 || err != nil {
			t.Fatalf("after the %s round a key is left: %d, %v", round, code, err)
		}
	}
}

// TestFirstToFinish: the keys of a rank that has finished stay until all have, and one
// that says so again, as clients do that had no answer, counts once.
func TestFirstToFinish(t *testing.T) {
	h := New(map[string]int{"global": 2})
	do := func(method, path, body string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w.Code
	}
	for _, step := range []struct {
		method, path string
		want         int
	}{
		{"PUT", "/global/0", 200},
		{"PUT", "/global/1", 200},
		{"DELETE", "/global/0", 200},
		{"DELETE", "/global/0", 200},
		{"GET", "/global/0", 200},
		{"DELETE", "/global/1", 200},
		{"GET", "/global/0", 404},
		{"GET", "/global/1", 404},
		{"PUT", "/other/0", 200},
		{"PUT", "/other/1", 200},
		{"DELETE", "/other/0", 200},
		{"GET", "/other/0", 404},
		{"GET", "/other/1", 200},
		{"DELETE", "/other/never", 200},
	} {
		if got := do(step.method, step.path, "x"); got != step.want {
			t.Errorf("%s %s: %d, want %d", step.method, step.path, got, step.want)
		}
	}
}

func TestRefused(t *testing.T) {
	address := start(t, map[string]int{"global": 2})
	long := strings.Repeat("k", MaxName+1)
	for _, tc := range []struct {
		name, method, path string
		body               []byte
		want               int
	}{
		{"no key", "GET", "/global", nil, 400},
		{"the root", "GET", "/", nil, 400},
		{"deeper", "PUT", "/global/a/b", nil, 400},
		{"upwards", "PUT", "/../../etc/passwd", nil, 400},
		{"another server", "GET", "http://elsewhere/global/0", nil, 400},
		{"a long scope", "GET", "/" + long + "/0", nil, 414},
		{"a long key", "PUT", "/global/" + long, nil, 414},
		{"a large value", "PUT", "/global/0", make([]byte, MaxValue+1), 413},
		{"another method", "POST", "/global/0", nil, 405},
		{"a large value that fits", "PUT", "/global/0", make([]byte, MaxValue), 200},
		{"names as they were sent", "PUT", "/global/a%2Fb?c", []byte("odd"), 200},
		{"not decoded", "GET", "/global/a%2fb?c", nil, 404},
		{"the same again", "GET", "/global/a%2Fb?c", nil, 200},
		{"nothing as a value", "PUT", "/global/empty", nil, 200},
		{"is there", "GET", "/global/empty", nil, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, _, err := ask(address, tc.method, tc.path, tc.body)
			if tc.want == 413 && err != nil { // the server needn't hear it to the end
				return
			}
			if code != tc.want || err != nil {
				t.Errorf("%d, %v; want %d", code, err, tc.want)
			}
		})
	}
}

// TestBounds: what is full stays full, and has room again for what takes its place.
func TestBounds(t *testing.T) {
	t.Run("bytes", func(t *testing.T) {
		s := newStore(nil)
		value, n := make([]byte, MaxValue), 0
		for s.putValue(name{"s", fmt.Sprint(n)}, value) {
			n++
		}
		if n != MaxBytes/MaxValue-1 {
			t.Errorf("%d values of %d bytes", n, MaxValue)
		}
		if !s.putValue(name{"s", "0"}, value) {
			t.Error("a value can't be replaced by one of its size")
		}
		s.finishScope(name{"s", "0"})
		if !s.putValue(name{"other", "0"}, value[:MaxValue-10]) {
			t.Error("what was deleted has made no room")
		}
	})
	t.Run("keys", func(t *testing.T) {
		s, n := newStore(map[string]int{"s": 1}), 0
		for s.putValue(name{"s", fmt.Sprint(n)}, nil) {
			n++
		}
		if n != MaxKeys {
			t.Errorf("%d keys", n)
		}
		s.finishScope(name{"s", "0"})
		if s.keys != 0 || s.bytes != 0 || len(s.values) != 0 || len(s.finished) != 0 {
			t.Errorf("all have finished, and left are %d keys, %d bytes", s.keys, s.bytes)
		}
	})
}

// ready is a listener with a connection for each Accept. It counts those that are open.
type ready struct {
	net.Listener
	open, most atomic.Int32
}

func (r *ready) Accept() (net.Conn, error) {
	r.most.Store(max(r.most.Load(), r.open.Add(1)))
	c, _ := net.Pipe()
	return &limitedConn{Conn: c, free: func() { r.open.Add(-1) }}, nil
}

func TestConnections(t *testing.T) {
	behind := &ready{}
	l := &limitedListener{behind, make(chan struct{}, 2)}
	accepted := make(chan net.Conn)
	go func() {
		for range 10 {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
			}
			accepted <- c
		}
		close(accepted)
	}()
	held := <-accepted
	for c := range accepted {
		held.Close()
		held.Close() // frees one place all the same
		held = c
	}
	if most := behind.most.Load(); most != 2 {
		t.Errorf("%d connections were open at once, with places for 2", most)
	}
}

// FuzzRequests sends whatever bytes to one store, as many requests as they make.
func FuzzRequests(f *testing.F) {
	f.Add([]byte("PUT /global/0 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /global/0 HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("DELETE /global/0 HTTP/1.1\r\nHost: a\r\n\r\nDELETE /global/1 HTTP/1.0\r\n\r\n"))
	f.Add([]byte("PUT /x/0 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n"))
	f.Add([]byte("GET http://[::1]/a/b HTTP/1.1\r\nHost: a\r\n\r\nOPTIONS * HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h := New(map[string]int{"global": 2})
		for in := bufio.NewReader(bytes.NewReader(data)); ; {
			r, err := http.ReadRequest(in)
			if err != nil {
				break
			}
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		sum, keys := 0, 0
		for scope, values := range h.store.values {
			if len(values) == 0 {
				t.Errorf("scope %q is kept without a key", scope)
			}
			for key, value := range values {
				sum, keys = sum+weightOf(name{scope, key}, value), keys+1
			}
		}
		if sum != h.store.bytes || keys != h.store.keys || len(h.store.finished["global"]) > 1 {
			t.Errorf("%d bytes in %d keys are counted as %d in %d", sum, keys, h.store.bytes, h.store.keys)
		}
	})
}
