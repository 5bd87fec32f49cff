package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// UploadCommand is `piecework upload`.
type UploadCommand struct {
	Remote
	Files []string `arg:"" name:"file" help:"Files of this machine."`
}

// Run uploads each file and prints its id.
func (c *UploadCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	for _, path := range c.Files {
		f, document, err := client.upload(app.Ctx, path)
		if err != nil {
			return fmt.Errorf("upload %s: %w", safeLine(path), err)
		}
		if c.JSON {
			err = printLine(app.Stdout, document)
		} else {
			_, err = fmt.Fprintln(app.Stdout, f.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// upload sends a file as it is read.
func (c *client) upload(ctx context.Context, path string) (f work.File, document []byte, err error) {
	if document, err = c.sendFile(ctx, "/files", path, ""); err != nil {
		return f, nil, err
	}
	if err := json.Unmarshal(document, &f); err != nil {
		return f, nil, &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	return f, document, nil
}

// uploadSource sends a file for a batch to be made of, which may be larger than
// the files of units: 200 MB. It returns the file's id.
func (c *client) uploadSource(ctx context.Context, path string) (string, error) {
	document, err := c.sendFile(ctx, "/v1/files", path, "batch")
	if err != nil {
		return "", err
	}
	var f struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(document, &f); err != nil {
		return "", &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	id, err := uuid.Parse(strings.TrimPrefix(f.ID, "file-"))
	if err != nil {
		return "", &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	return id.String(), nil
}

// sendFile sends a file to one of the two places that take some.
func (c *client) sendFile(ctx context.Context, to, path, purpose string) (document []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, usagef("%w", err)
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, usagef("%s is no regular file", path)
	}
	pipe, form := io.Pipe()
	defer func() { _ = pipe.Close() }() // ends the writer too when the server has answered early
	parts := multipart.NewWriter(form)
	go func() {
		var err error
		if purpose != "" {
			err = parts.WriteField("purpose", purpose)
		}
		var part io.Writer
		if err == nil {
			part, err = parts.CreateFormFile("file", filepath.Base(path))
		}
		if err == nil {
			_, err = io.Copy(part, file)
		}
		form.CloseWithError(errors.Join(err, parts.Close()))
	}()
	return c.once(ctx, request{method: http.MethodPost, path: to, stream: pipe, contentType: parts.FormDataContentType()})
}

// submitFiles submits a unit. A file of this machine that the server refuses
// is uploaded, and the unit submitted with its id.
func (c *client) submitFiles(ctx context.Context, body *submission, key string) (*unit, error) {
	paths, _ := body.Payload["file_paths"].([]string)
	for range len(paths) {
		accepted, err := c.submit(ctx, body, key)
		i, refused := refusedFile(err)
		if !refused || i >= len(paths) {
			return accepted, err
		}
		if info, lost := os.Stat(paths[i]); lost != nil || !info.Mode().IsRegular() {
			return nil, err
		}
		f, _, err := c.upload(ctx, paths[i])
		if err != nil {
			return nil, fmt.Errorf("upload %s: %w", safeLine(paths[i]), err)
		}
		paths[i] = f.ID.String()
	}
	return c.submit(ctx, body, key)
}

// refusedFile is which of file_paths the server cannot use.
func refusedFile(err error) (int, bool) {
	var p *problem
	if !errors.As(err, &p) || p.Status != http.StatusUnprocessableEntity || len(p.Errors) == 0 {
		return 0, false
	}
	number, ok := strings.CutPrefix(p.Errors[0].Pointer, "#/payload/file_paths/")
	i, err := strconv.Atoi(number)
	return i, ok && err == nil
}
