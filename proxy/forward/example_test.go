package forward_test

import (
	"fmt"
	"io"
	"net"

	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/outcome"
)

// A server accepts one connection, connects to an endpoint, and forwards. The client ends its half, and still gets
// the answer.
func ExampleCopy() {
	endpoint := listen()
	defer endpoint.Close()
	go func() {
		conn, _ := endpoint.Accept()
		question, _ := io.ReadAll(conn) // until the client's FIN
		fmt.Fprintf(conn, "you said %q", question)
		conn.Close()
	}()

	server := listen()
	defer server.Close()
	ended := make(chan outcome.Result)
	go func() {
		client, _ := server.Accept()
		conn, _ := net.Dial("tcp", endpoint.Addr().String())
		forward.Copy(client.(*net.TCPConn), conn.(*net.TCPConn), forward.Limits{}, forward.Done(func(r outcome.Result) { ended <- r }))
	}()

	client, _ := net.Dial("tcp", server.Addr().String())
	defer client.Close()
	fmt.Fprint(client, "hello")
	client.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(client)
	fmt.Println(string(answer))

	result := <-ended
	fmt.Println("the client ended first:", result.Outcome == outcome.ClientClosed)
	fmt.Println(result.ToEndpoint, "bytes to the endpoint,", result.ToClient, "to the client")

	// Output:
	// you said "hello"
	// the client ended first: true
	// 5 bytes to the endpoint, 16 to the client
}

func listen() net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	return l
}
