package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// linesRow sends one batch of very many lines, while no worker process runs.
func linesRow(lines int) row {
	return row{
		name: "lines", title: fmt.Sprintf("One batch of %d lines of 250 bytes, sent as one request; memory of the API process without its binary", lines), most: 1, limit: time.Hour,
		subjects: []subject{{piecework, product, sendLines(lines)}},
	}
}

func sendLines(lines int) func(context.Context, *stage) (sample, error) {
	return func(ctx context.Context, s *stage) (sample, error) {
		server, err := s.startAPI()
		if err != nil {
			return sample{}, err
		}
		pid := server.cmd.Process.Pid
		out := sample{Values: map[string]float64{"MB before": residentMB(pid)}}
		a, err := s.read(ctx)
		if err != nil {
			return out, err
		}
		began := time.Now()
		answered := make(chan error, 1)
		go func() { answered <- postLines(ctx, server.url+"/batches", lines) }()
		most, filled := 0.0, false
		for !filled {
			most = max(most, residentMB(pid))
			select {
			case err := <-answered:
				if err != nil {
					return out, err
				}
				out.Values["answered s"] = time.Since(began).Seconds()
				out.Values["MB at most until the answer"], most = most, 0
				answered = nil
			case <-time.After(200 * time.Millisecond):
			}
			if answered == nil {
				err := s.conn.QueryRow(ctx, "SELECT /* measure */ coalesce(bool_and(status <> 'enumerating'), false) FROM batches").Scan(&filled)
				if err != nil {
					return out, err
				}
			}
		}
		b, err := s.read(ctx)
		if err != nil {
			return out, err
		}
		all := since(a, b, lines, b.at.Sub(began).Seconds())
		all.Values = out.Values
		all.Values["MB at most while units are made"] = most
		all.Values["MB a minute later"] = func() float64 { pause(ctx, time.Minute); return residentMB(pid) }()
		return all, nil
	}
}

func postLines(ctx context.Context, url string, lines int) error {
	body, in := io.Pipe()
	go func() {
		w := bufio.NewWriterSize(in, 64<<10)
		for i := range lines {
			fmt.Fprintf(w, `{"backend":"mock","prompt":"Summarise letter {number} in three sentences","labels":{"kind":"letter"},"payload":{"number":%d,"text":"%s"}}`+"\n", i, lorem(i, 100))
		}
		_ = in.CloseWithError(w.Flush())
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-ndjson")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 500))
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("POST /batches: %s: %s", answer.Status, text)
	}
	return nil
}
