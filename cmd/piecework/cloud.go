//go:build !nocloud

package main

import (
	_ "gocloud.dev/blob/gcsblob" // PIECEWORK_FILES=gs://…
	_ "gocloud.dev/blob/s3blob"  // and s3://…
)
