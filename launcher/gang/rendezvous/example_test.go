package rendezvous_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/berth-gpu/berth/launcher/gang/rendezvous"
)

// Two ranks of a job find each other.
func ExampleServe() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error)
	go func() { ended <- rendezvous.Serve(ctx, l, map[string]int{"global": 2}) }()

	url := "http://" + l.Addr().String() + "/global/0"
	put, err := http.NewRequest(http.MethodPut, url, strings.NewReader("10.0.0.2:4711"))
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := http.DefaultClient.Do(put); err != nil {
		fmt.Println(err)
	}
	answer, err := http.Get(url)
	if err != nil {
		fmt.Println(err)
		return
	}
	value, err := io.ReadAll(answer.Body)
	fmt.Println(string(value), err)
	stop()
	fmt.Println(<-ended)
	// Output:
	// 10.0.0.2:4711 <nil>
	// <nil>
}
