// Command cri speaks the Container Runtime Interface (CRI) v1, as the kubelet does, for
// the tests of containerd:
//
//	cri SOCKET METHOD < REQUEST > RESPONSE
//
// METHOD is a call of the runtime or of the image service ("RunPodSandbox"); the
// request and the response are its messages as JSON. What a call answers as error goes
// to standard error as "CODE: MESSAGE", with the exit code 1.
//
// It knows the calls that have one request and one response, and none of their meaning.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		if s, ok := status.FromError(err); ok {
			err = fmt.Errorf("%s: %s", s.Code(), s.Message())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: cri SOCKET METHOD")
	}
	method, err := find(args[1])
	if err != nil {
		return err
	}
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	request, response := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	if err := protojson.Unmarshal(text, request); err != nil {
		return fmt.Errorf("read the request of %s: %w", args[1], err)
	}
	if err := call(args[0], method, request, response); err != nil {
		return err
	}
	out, err := protojson.Marshal(response)
	if err != nil {
		return fmt.Errorf("write the response of %s: %w", args[1], err)
	}
	_, err = os.Stdout.Write(append(out, '\n'))
	return err
}

// find looks a call up in the services that the package describes.
func find(name string) (protoreflect.MethodDescriptor, error) {
	file := (&cri.VersionRequest{}).ProtoReflect().Descriptor().ParentFile()
	for i := range file.Services().Len() {
		if m := file.Services().Get(i).Methods().ByName(protoreflect.Name(name)); m != nil && !m.IsStreamingServer() {
			return m, nil
		}
	}
	return nil, fmt.Errorf("the CRI has no call %s", name)
}

func call(socket string, method protoreflect.MethodDescriptor, request, response proto.Message) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", socket, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err = conn.Invoke(ctx, fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name()), request, response)
	if closed := conn.Close(); err == nil {
		err = closed
	}
	return err // as it came: it has a code
}
